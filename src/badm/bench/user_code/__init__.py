"""Code in files of the user's own: tasks, training functions, methods and schedules."""

"""The evaluation: which method trains a task best, measured fairly."""

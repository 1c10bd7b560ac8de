"""Internal: how the processes of the commands start, stop and end. Imports no torch."""

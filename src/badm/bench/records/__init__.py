"""What is written down: runs, plans and comparisons."""

"""What is saved: runs, plans and comparisons."""

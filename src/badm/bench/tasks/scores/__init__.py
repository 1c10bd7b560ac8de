"""Scores that tasks share, and images and texts for reports."""

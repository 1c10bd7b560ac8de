"""Scores that tasks share, and pictures of what a model does."""

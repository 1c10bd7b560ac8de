"""The methods that are compared, one family per file."""

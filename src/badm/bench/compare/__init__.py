"""Which runs make a comparison: protocol, search, one method on one task."""

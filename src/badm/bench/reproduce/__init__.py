"""The parts of the paper as data, and its tables with ours beside them."""

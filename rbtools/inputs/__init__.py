"""Finds the data set, the architecture and the checkpoint that a record names."""

"""Resolves what a record names: its data set, its architecture, its checkpoint."""

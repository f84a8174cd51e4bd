"""Readers and writers for the result files that papers publish."""

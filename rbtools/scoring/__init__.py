"""Scores, ranks and tables, computed without torch."""

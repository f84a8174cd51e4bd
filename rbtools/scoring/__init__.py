"""Scores, ranks and tables. These modules compute numbers and texts from numbers, and do not need torch."""

from __future__ import annotations

"""Scores, ranks and tables: numbers in, numbers or text out. No torch."""

from __future__ import annotations

"""Scores, ranks and tables. These modules turn numbers into numbers or text, without torch."""

from __future__ import annotations

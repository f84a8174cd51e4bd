"""Random numbers that belong to the example: Philox, and draws from it. Importing this imports no torch."""

from __future__ import annotations

# The generator of all random numbers and the version of how it is used: part of every key and
# entry of a random result, so that a change here never meets results of an older one.
GENERATOR = "philox4x32-10/1"

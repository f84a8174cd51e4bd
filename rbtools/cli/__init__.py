"""The command-line framework that the commands share."""

import time

BEGUN = time.perf_counter()
"""When this process began to import the tool."""

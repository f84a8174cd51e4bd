"""Writes the man pages and completions to a folder."""

import sys

from rbtools.cli.docs import main

main(*sys.argv[1:2])

"""`python -m rbtools.cli.docs [FOLDER]`: write man pages and completions."""

import sys

from rbtools.cli.docs import main

main(*sys.argv[1:2])

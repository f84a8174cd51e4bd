"""The commands: `rb-NAME` is NAME.py."""

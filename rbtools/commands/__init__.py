"""The commands; the file NAME.py contains the command `rb-NAME`."""

"""The command-line framework that the commands share."""

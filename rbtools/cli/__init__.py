"""The command-line framework that all commands use."""

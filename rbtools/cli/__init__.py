"""The commands: one thin module for each, and what they share."""

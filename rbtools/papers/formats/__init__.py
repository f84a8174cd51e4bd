"""The files of results that papers publish."""

"""Recognises and builds networks of other libraries and repositories."""

"""Man pages and completions, made from the commands themselves."""

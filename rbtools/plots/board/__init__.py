"""The leaderboard page: columns, content, commands that reproduce a record, and template files."""

"""The leaderboard and the report of one model, as HTML pages."""

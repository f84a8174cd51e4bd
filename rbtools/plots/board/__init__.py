"""The leaderboard page: what stands in it (`columns`, `content`, `again`), and its template files."""

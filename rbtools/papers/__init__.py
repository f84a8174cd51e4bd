"""Everything that belongs to single papers: formats, presets, recipes, figures and tables."""

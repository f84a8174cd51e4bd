"""What belongs to one paper: formats, presets, recipes, figures and tables."""

"""Everything that is specific to one paper: formats, presets, recipes, figures and tables."""

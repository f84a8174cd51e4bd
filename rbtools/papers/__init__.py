"""The parts for single papers: formats, presets, recipes, figures and tables."""

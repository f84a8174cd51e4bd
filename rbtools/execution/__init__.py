"""How jobs run: in this process, in others, or on a Ray cluster. Knows no attack and no loss."""

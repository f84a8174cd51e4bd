"""Threats, which define what may be done to an image.

A threat does not know the model, the attack or the seed. The evaluation checks with the threat whether each
image is allowed (`contains`), so an attack that returns other images cannot report a false success.
"""

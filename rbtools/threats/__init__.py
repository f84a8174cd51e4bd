"""Threats: what may be done to an image. A threat does not know the model, the attack or the seed.

The evaluation asks the threat whether each image is allowed (`contains`), so an attack that returns other
images cannot report a false success.
"""

"""Threats: what may be done to an image.

An attack searches the points of a threat. A threat does not know the model, the attack or the seed. The
evaluation asks the threat whether each image is allowed (`contains`), so an attack that returns other images
cannot report a false success.
"""

from __future__ import annotations

from rbtools.registry import Registry

THREATS = Registry("threat", {"ball": "rbtools.threats.ball:Ball"}, group="threats")

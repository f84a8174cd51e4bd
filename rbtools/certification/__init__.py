"""Certification: `smooth` certifies the smoothed classifier by sampling and returns a radius for each image.

A method has its own file and is registered by one line in this module. A method is called as `method(model,
images, labels)`. Like an attack, a method does not know the device and does not read or write files.
"""

from __future__ import annotations

from rbtools.registry import Registry

CERTIFIERS = Registry("certifier", {"smooth": "rbtools.certification.smooth:Smooth"})

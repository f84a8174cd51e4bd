"""Certification of the smoothed classifier by sampling. A method is called as `method(model, images,
labels)`, does not know the device, and does not read or write files."""

from __future__ import annotations

from rbtools.registry import Registry

CERTIFIERS = Registry("certifier", {"smooth": "rbtools.certification.smooth:Smooth"})

"""Certification: `smooth` certifies the smoothed classifier by sampling; its result is each image's radius.

A method is one file and one line here, and is called as `method(model, images, labels)`. Like an attack, it
does not know the device and uses no files.
"""

from __future__ import annotations

from rbtools.registry import Registry

CERTIFIERS = Registry("certifier", {"smooth": "rbtools.certification.smooth:Smooth"})

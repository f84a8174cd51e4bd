"""Certification: lower bounds of a network's margins for all images in a ball, which hold for every attack.

Each method is one file and one line here, and is called as `method(model, images, labels, eps=...)`: the
result says which images are certified. `smooth` certifies the smoothed classifier by sampling; its result is
each image's radius. Like an attack, a method has no device or file.
"""

from __future__ import annotations

from rbtools.registry import Registry

CERTIFIERS = Registry(
    "certifier",
    {
        "ibp": "rbtools.certification.ibp:IBP",
        "crown": "rbtools.certification.crown:CROWN",
        "smooth": "rbtools.certification.smooth:Smooth",
    },
)

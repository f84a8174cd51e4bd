"""Certification: lower bounds of a network's margins in a ball, which no attack in that ball can go below.

Each method is one file and one line here. Like an attack, a method has no device, seed or file; the
evaluation decides what is certified from the bounds. `smooth` certifies the smoothed classifier by sampling;
it has settings alone, the evaluation samples.
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

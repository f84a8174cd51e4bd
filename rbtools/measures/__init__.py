"""What can be said of a network without attacking it, or with little more: training-free and curvature
measures.

One file a measure, one line here. A measure is given a model, and batches that the engine made: images,
labels, random numbers and, where it asks for them, adversarial images. It gives named numbers.
"""

from __future__ import annotations

from rbtools.registry import Registry

MEASURES = Registry(
    "measure",
    {
        "hessian": "rbtools.measures.hessian:Hessian",
        "wci": "rbtools.measures.wci:WCI",
    },
)

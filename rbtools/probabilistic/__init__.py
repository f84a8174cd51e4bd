"""Probabilistic robustness: noise to sample with, and the statistics of what was sampled.

`noise` makes the draws and `splitting` finds what is too rare to be drawn; `estimate`, `intervals` and
`sequential` take counts and know neither model nor tensor.
"""

from __future__ import annotations

from rbtools.registry import Registry

NOISES = Registry(
    "noise",
    {
        "uniform": "rbtools.probabilistic.distributions:Uniform",
        "gaussian": "rbtools.probabilistic.distributions:Gaussian",
        "laplace": "rbtools.probabilistic.distributions:Laplace",
    },
)

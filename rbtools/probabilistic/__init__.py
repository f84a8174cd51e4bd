"""Probabilistic robustness: noise distributions, and the statistics of noisy copies.

`distributions` contains the noise, `splitting` estimates probabilities of rare failures; `estimate`,
`mixing`, `intervals` and `sequential` work on counts, without model and tensors.
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

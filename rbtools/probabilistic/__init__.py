"""Probabilistic robustness: noise to sample with, and the statistics of what was sampled.

`noise` makes the draws; `estimate` and `intervals` take counts and know neither model nor tensor.
"""

from __future__ import annotations

from rbtools.registry import Registry

NOISES = Registry("noise", {"uniform": "rbtools.probabilistic.noise:Uniform"})

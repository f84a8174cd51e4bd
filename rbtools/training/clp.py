"""CLP: clean logit pairing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.training.pairing import Pairing


@dataclass(frozen=True, kw_only=True)
class CLP(Pairing):
    """Clean logit pairing as in PRBench's table 2: CE(x) + lambda * ||p(x') - p(x)||^2.

    PRBench pairs an image with its own adversarial image; Kannan et al. 2018 (arXiv:1803.06373) pair two
    images drawn at random. p are probabilities, or logits with `pair="logits"`. PRBench's code
    (wellzline/PRBenchmark, attack_algorithms.py) pairs logits by `distance="l2"`, with lambda 0.3 on every
    data set. x' ascends the cross-entropy from a uniform start.
    """

    name: ClassVar[str] = "clp"
    version: ClassVar[int] = 1
    classified: ClassVar[str] = "clean"

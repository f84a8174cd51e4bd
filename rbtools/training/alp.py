"""ALP: adversarial logit pairing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.training.pairing import Pairing


@dataclass(frozen=True, kw_only=True)
class ALP(Pairing):
    """Adversarial logit pairing (Kannan et al. 2018, arXiv:1803.06373): CE(x') + lambda * ||p(x') - p(x)||^2.

    p are probabilities, as in PRBench's table 2, or logits (`pair="logits"`), as in Kannan et al. PRBench's
    code (wellzline/PRBenchmark, attack_algorithms.py) pairs logits by `distance="l2"`, with lambda 0.01 on
    every data set. x' ascends the cross-entropy from a uniform start.
    """

    name: ClassVar[str] = "alp"
    version: ClassVar[int] = 1
    classified: ClassVar[str] = "adversarial"

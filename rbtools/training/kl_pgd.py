"""KL-PGD: adversarial training on the images of TRADES."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.training.pgd_at import PGDTraining


@dataclass(frozen=True, kw_only=True)
class KLPGD(PGDTraining):
    """KL-PGD (PRBench, table 2): CE(x').

    x' ascends the divergence KL(p(x) || p(x')) from x + 0.001 * N(0, 1), as in TRADES, without the labels.
    """

    name: ClassVar[str] = "kl-pgd"
    version: ClassVar[int] = 1
    inner: ClassVar[str | None] = "kl"
    start: ClassVar[str] = "noise"

"""smooth: randomised smoothing, whose certificates are of the smoothed classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.errors import RbError
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Smooth:
    """Randomised smoothing (Cohen, Rosenfeld and Kolter 2019, arXiv:1902.02918): L2 certificates for any
    network, by sampling.

    They are of the smoothed classifier, which gives the class that the network gives most often under
    Gaussian noise of standard deviation --sigma, or abstains: not of the network itself, which attacks are
    on. The network does best if it was trained on this noise: rb-train --method corruption --noise gaussian
    --sigma 0.25. Some copies select the class, others bound its probability, each certificate with an error
    probability of --alpha. Copies are classified by the network itself in float32; rounding in noise and
    network is not covered.

    With --adaptive an image gets no more copies as soon as all distances of --eps are decided. The error
    probability of all its certificates together is --alpha; a few images near a limit that all copies would
    certify are given up.
    """

    name: ClassVar[str] = "smooth"
    version: ClassVar[int] = 1
    norm: ClassVar[str] = "l2"
    default_eps: ClassVar[str] = "0,0.25,0.5,0.75,1"

    sigma: float = param(0.25, "Standard deviation of the noise, on [0, 1].", check="positive")
    alpha: float = param(0.001, "Error probability of an image's certificates.", check="positive")
    samples: int = param(
        100_000, "Noisy copies of each image; with --adaptive, at most.", bounds=f"[1, {1 << 23}]"
    )
    select: int = param(100, "Noisy copies that select the class, before these.", check="positive")
    adaptive: bool = param(
        False, "Stop an image as soon as its list of --eps is decided.", flags=("--adaptive",)
    )

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise RbError(f"alpha is {self.alpha:g}. It must be between 0 and 0.5, such as 0.001.")
        if not 1 <= self.samples <= 1 << 23:
            raise RbError(f"samples is {self.samples}. Expected a number from 1 to {1 << 23}.")

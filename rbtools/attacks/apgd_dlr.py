"""APGD-DLR: Auto-PGD on the difference of logits ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.attacks.apgd_ce import APGDCE


@dataclass(frozen=True, kw_only=True)
class APGDDLR(APGDCE):
    """Auto-PGD on the difference of logits ratio, DLR (Croce and Hein 2020, arXiv:2003.01690).

    The loss is the margin divided by the difference of the first and the third logit, so it does not depend
    on the scale of the logits. It needs three classes: for a model of two it is the margin itself.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    Raises RbError for a model of two classes with backend pyautoattack.
    """

    name: ClassVar[str] = "apgd-dlr"
    version: ClassVar[int] = 1
    loss: ClassVar[str] = "dlr"

"""ERM: standard training, without an attack."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.training.base import Loss, cross_entropy

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class ERM:
    """Empirical risk minimisation: the cross-entropy on the images as they are.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,).
    """

    name: ClassVar[str] = "erm"
    version: ClassVar[int] = 1
    inner: ClassVar[str | None] = None

    @property
    def passes(self) -> tuple[int, int]:
        """(forward, backward) passes per image of one step."""
        return 1, 1

    def __call__(self, model: nn.Module, images: Tensor, labels: Tensor, draws: Any) -> Loss:
        logits = model(images)
        return Loss(cross_entropy(logits, labels), clean_logits=logits.detach())

"""The base class of threats."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rbtools.registry import Registered

if TYPE_CHECKING:
    from torch import Tensor


class Threat(Registered):
    """The base of every threat: a frozen, keyword-only dataclass whose fields are its settings."""

    name: ClassVar[str]

    @property
    def empty(self) -> bool:
        """True if only the unchanged image is allowed."""
        raise NotImplementedError

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        """The nearest allowed points (N, C, H, W)."""
        raise NotImplementedError

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        """Whether each point is allowed, up to rounding: bool (N,). `images` (N, C, H, W) are in [0, 1]."""
        raise NotImplementedError

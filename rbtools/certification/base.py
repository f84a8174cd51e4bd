"""The base class of the certification methods that bound margins.

Nothing here imports torch, so that the classes of methods load with `--help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.registry import param

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def ball_norm_param() -> Any:
    """The field for the norm of the ball."""
    return param("linf", "The norm of the ball.", choices=("linf", "l2"))


class Certifier:
    """The base of every registered method: a frozen, keyword-only dataclass with `__call__`.

    `eps` is the radius of the ball of `norm` ("linf" or "l2"), in pixel units of [0, 1].
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    default_eps: ClassVar[str] = "8"  # as typed
    eps: float
    norm: str

    @property
    def alone(self) -> bool:
        """Whether each image is bounded by itself, so that the bounds are the same beside any others."""
        return False

    def __call__(
        self, model: Callable[[Tensor], Tensor], images: Tensor, labels: Tensor, *, outward: bool = True
    ) -> Tensor:
        """Lower bounds (N,) in float64 of each image's smallest margin, logit of the label minus another.

        Shape: images float32 (N, C, H, W) in [0, 1]; labels int64 (N,). `model` maps images to logits (N, K);
        the bounds are of all images in [0, 1] at a distance of eps or less. `outward`: they hold for the
        model in float32, and not only for real numbers (`rbtools.certification.rounding`). Raises RbError for
        a network that has an operation without bounds.
        """
        raise NotImplementedError

"""The base class of threats."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rbtools.registry import Registered

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.rng.draws import Draws


class Threat(Registered):
    """The base of every threat: a frozen, keyword-only dataclass whose fields are its settings.

    A threat is a set of points for each image, and an image for each point. In a ball, a point is its image.
    In a family of transformations, a point contains the parameters of a transformation, such as the degrees
    of a rotation.

    A metric's name contains the threat after the attack: `pgd20.l2.0.5` is `pgd20`, the `kind` and the
    `numbers`. The kind is left out if it is the usual one (`linf`) or the attack's own name.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # The setting that a list of distances, `--over` and curves vary; larger values allow more.
    over: ClassVar[str]
    # The label of an axis with this setting.
    axis: ClassVar[str]

    @property
    def kind(self) -> str:
        """The word for the threat in names of metrics."""
        return self.name

    @property
    def numbers(self) -> str:
        """The settings as they are written in names of metrics."""
        return f"{getattr(self, self.over):g}"

    @property
    def empty(self) -> bool:
        """True if only the unchanged image is allowed."""
        return bool(getattr(self, self.over) == 0)

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        """The nearest allowed points. A family of transformations moves no point; it refuses points."""
        return points

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        """Whether each point is allowed, up to rounding: bool (N,). `images` (N, C, H, W) are in [0, 1]."""
        raise NotImplementedError

    def images(self, points: Tensor, images: Tensor) -> Tensor:
        """The images (N, C, H, W) in [0, 1] of the points (N, ...)."""
        raise NotImplementedError

    def start(self, images: Tensor, draws: Draws, draw: int = 0) -> Tensor:
        """A random point for each image, from the random numbers `draw` of each example."""
        raise NotImplementedError

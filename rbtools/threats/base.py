"""The base class of threats."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.check_field import kind_of
from rbtools.errors import RbError
from rbtools.records.name_forms import NUMBER
from rbtools.registry import Registered

if TYPE_CHECKING:
    from torch import Tensor


class Threat(Registered):
    """Base class of all threats, which are frozen, keyword-only dataclasses whose fields are the settings.

    The fields are numbers or strings, and the name of a metric contains all of them in their order. An attack
    within the threat has fields with the same names. A point is what an attack chooses for an image, such as
    an angle; the points of a ball are images.
    """

    name: ClassVar[str]
    # The field that varies in lists of distances, ladders and curves, and by which threats are ordered.
    strength: ClassVar[str] = "eps"
    # In names of metrics, the words between the attack and the settings of the threat.
    words: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "words" not in vars(cls) and "name" in vars(cls):
            cls.words = (cls.name,)

    @property
    def empty(self) -> bool:
        """True if only the unchanged image is allowed."""
        return bool(getattr(self, self.strength) == 0)

    @property
    def in_names(self) -> str:
        """The settings of the threat at the end of a metric's name: `30.3` in `spatial.30.3`."""
        values = (getattr(self, one.name) for one in dataclasses.fields(self))  # type: ignore[arg-type]
        return ".".join(value if isinstance(value, str) else f"{value:g}" for value in values)

    @classmethod
    def fields_in_names(cls) -> list[str]:
        """The fields that names contain as settings: all but the norm of a ball, which is a word."""
        return [one.name for one in dataclasses.fields(cls) if one.name != "norm"]  # type: ignore[arg-type]

    @classmethod
    @functools.cache
    def pattern(cls) -> re.Pattern[str]:
        """The pattern that matches the settings in a name. Its groups are word, before, number (the
        strength), after and suffix, and one for each field."""
        names = cls.fields_in_names()
        place = names.index(cls.strength)
        parts = [f"(?P<{name}>{_values(cls, name)})" for name in names]
        before, after = r"\.".join(parts[:place]), "".join(rf"\.{part}" for part in parts[place + 1 :])
        words = "|".join(map(re.escape, cls.words))
        before = rf"(?P<before>{before}\.)" if before else "(?P<before>)"
        number = f"(?P<number>{parts[place]})(?P<after>{after})"
        return re.compile(rf"(?:(?P<word>{words})\.)?{before}{number}(?:\.(?P<suffix>[a-z_]+))?")

    @classmethod
    def settings(cls, word: str, values: Mapping[str, str]) -> dict[str, Any]:
        """Convert the word and the values (as strings) in a metric's name to the fields of the threat."""
        kinds = {one.name: kind_of(one) for one in dataclasses.fields(cls)}  # type: ignore[arg-type]
        read = {"int": int, "float": float}
        return {name: read.get(kinds[name], str)(value) for name, value in values.items()}

    @classmethod
    def axis(cls, word: str) -> str:
        """The label of a plot axis that shows the strength."""
        return cls.strength

    @classmethod
    def said(cls, word: str, values: Mapping[str, str]) -> str:
        """The settings in words, for headings, such as `30 degrees, 3 pixels`."""
        return ", ".join(_quantity(name.replace("_", " "), value) for name, value in values.items())

    @classmethod
    def beside(cls, word: str) -> str:
        """The addition to the attack's name in headings, such as ` (L2)`."""
        return f" ({word})" if word else ""

    @classmethod
    def points_are_images(cls) -> bool:
        return cls.images is Threat.images

    def unchanged(self, images: Tensor) -> Tensor:
        """The points (N, ...) that change nothing. By default, these are copies of the images."""
        return images.clone()

    def images(self, points: Tensor, images: Tensor) -> Tensor:
        """The images (N, C, H, W) in [0, 1] that result from applying the points to `images`. By default, a
        point is an image."""
        return points

    def made(self, points: Tensor, images: Tensor) -> Tensor:
        """The images that result from the points. Raises RbError if they are not valid images."""
        made = self.images(points, images)
        inside = made.shape == images.shape and bool(((made >= 0) & (made <= 1)).all())  # false for NaN
        if not inside:
            raise RbError(
                f"The threat {self.name} returned values outside [0, 1], or of shape {tuple(made.shape)}."
                f" Expected images of shape {tuple(images.shape)} in [0, 1]. This is an error in the threat."
            )
        return made

    def distances(self, points: Tensor, images: Tensor) -> Tensor:
        """The smallest strength at which each point is allowed: (N,)."""
        raise NotImplementedError

    def project(self, points: Tensor, images: Tensor) -> Tensor:
        """The nearest allowed points (N, ...). `images` (N, C, H, W) are the unchanged images, in [0, 1]."""
        raise NotImplementedError

    def contains(self, points: Tensor, images: Tensor) -> Tensor:
        """Whether each point is allowed, up to rounding: bool (N,)."""
        raise NotImplementedError


def _quantity(name: str, value: str) -> str:
    """A quantity such as `2 pixels`, `1 pixel` or `amount 0.1`."""
    if not name.endswith("s") or name.endswith(("ss", "us")):
        return f"{name} {value}"
    return f"{value} {name.removesuffix('s') if value == '1' else name}"


def _values(threat: Any, name: str) -> str:
    """The pattern that matches the values of a field in names."""
    field = next(one for one in dataclasses.fields(threat) if one.name == name)
    if choices := field.metadata.get("choices"):
        return "|".join(map(re.escape, choices))
    return {"int": r"(?:0|[1-9]\d*)", "float": NUMBER}.get(kind_of(field), r"[^.]+")

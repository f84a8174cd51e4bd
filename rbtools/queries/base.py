"""The base class of models that can only be queried, and the form of their answers.

This module does not import torch, because `--help` loads these classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from rbtools.errors import RbError, shown
from rbtools.lazy import np
from rbtools.registry import Registered, config, rare_param

if TYPE_CHECKING:
    from typing_extensions import Self

    from rbtools.execution.run import Access

_option = partial(rare_param, group="Model")
FORMS = ("label", "logits", "probs")


class ModelFailure(RbError):
    """Raised if a model gives no usable answer. `image` is the index of the first image without an answer."""

    def __init__(self, message: str, image: int = 0) -> None:
        super().__init__(message)
        self.image = image


class BatchAnswers(NamedTuple):
    """The answers for N images: `form` is "label", "logits" or "probs". `values` are class numbers int64
    (N,), or scores float32 (N, K)."""

    form: str
    values: np.ndarray


class Service(Protocol):
    """A connection to a model that is ready to be queried."""

    def ask(self, images: np.ndarray) -> BatchAnswers:
        """The answers for images (N, H, W, C): uint8, or float32 in [0, 1] if `model_pixels` is "float".

        Raises ModelFailure if the model does not answer, even after it was restarted or asked again.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class KindOfModel(Registered):
    """Base class of each kind of model that can only be queried, a frozen, keyword-only dataclass.

    The fields are options of the tools. Together with `kind` and `text`, they describe the architecture in a
    record. `text` is the value of the option that specifies the model, such as its command.
    """

    name: ClassVar[str]
    flag: ClassVar[str]  # the option that names a model of this kind, such as --model-cmd
    metavar: ClassVar[str]  # the placeholder of its value in the help
    help: ClassVar[str]  # the help of this option

    text: str
    model_pixels: str = _option(
        "uint8",
        "Format of the images that the model receives: 8-bit pixels, or float32 pixels in [0, 1] (float).",
        choices=("uint8", "float"),
    )

    model_version: str | None = _option(
        None,
        "Version that identifies the model.  [default: the model is identified by its answers on 32 fixed"
        " images, which are requested in each run]",
        metavar="TEXT",
    )

    @classmethod
    def typed(cls, text: str, **options: Any) -> Self:
        """The model that the user specifies by `text`, with the options as typed. Raises RbError."""
        return cls(text=text, **options)

    def open(self, access: Access) -> Service:
        """Connect to the model. Raises RbError if this is not possible."""
        raise NotImplementedError

    def fields(self) -> dict[str, str]:
        """The strings that describe the model in a record, in addition to its space."""
        given = {name: value for name, value in config(self).items() if value is not None and name != "text"}
        return {"kind": self.name, "name": self.text, **given}


def answers_of(objects: Iterable[Any], count: int) -> BatchAnswers:
    """The answers for `count` images, from JSON objects {"label": 3}, {"logits": [...]} or {"probs": [...]}.

    Raises ModelFailure if the number of objects differs, and for objects of other or of different forms.
    """
    given = list(objects)
    form, rows = "", []
    for number, one in enumerate(given[:count]):
        found = [key for key in FORMS if isinstance(one, Mapping) and key in one]
        if len(found) != 1 or form not in ("", found[0]):
            expected = f'{{"{form}": ...}}' if form else '{"label": 3}, {"logits": [...]} or {"probs": [...]}'
            raise ModelFailure(
                f"The model answered with {shown(repr(one), 80)}. Expected {expected}.", number
            )
        form = found[0]
        rows.append(_value(form, one[form], number))
        if len(np.shape(rows[-1])) and len(rows[-1]) != len(rows[0]):
            raise ModelFailure(
                f"The model answered with {len(rows[-1])} scores. Expected {len(rows[0])}, as before.", number
            )
    if len(given) != count:
        raise ModelFailure(
            f"The model gave {len(given)} answers for {count} images. Expected one for each image.",
            min(len(given), count - 1),
        )
    return BatchAnswers(form, np.asarray(rows, np.int64 if form == "label" else np.float32))


def _value(form: str, value: Any, number: int) -> Any:
    """The label or the scores of one answer. Raises ModelFailure for any other value."""
    if form == "label" and type(value) is int and 0 <= value < 1 << 31:
        return value
    if form != "label" and isinstance(value, list) and value:
        numbers = all(type(one) in (int, float) for one in value)
        if numbers and np.isfinite(np.asarray(value, np.float64)).all():
            return value
    expected = "a class number from 0" if form == "label" else "a list of finite numbers"
    raise ModelFailure(
        f"The model answered with the {form} {shown(repr(value), 80)}. Expected {expected}.", number
    )

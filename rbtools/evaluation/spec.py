"""`Spec` describes a single result, and `Evaluation` groups specs that are measured together."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools import registry
from rbtools.check_field import check_number, plain
from rbtools.errors import RbError
from rbtools.evaluation.base import Batch, Outcome
from rbtools.lazy import np
from rbtools.records import metric_name, results, schema
from rbtools.records.name_forms import NameForm

if TYPE_CHECKING:
    from typing_extensions import Self

    from rbtools.registry import Registry

Entry = dict[str, Any]
# The rows (n,) or (n, R) of a measured spec.
RowsOf = Callable[["Spec"], "np.ndarray"]
Summary = Callable[[Sequence[Any], Sequence[Entry], Sequence[Entry], RowsOf | None], list[Entry]]


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One result of a model on images, with a row for each image and an entry that is computed from all rows.

    The fields are the settings; they determine the entry and its key in the store. Two results with equal
    settings answer the same question. Fields that entries do not contain are ignored in comparisons. Several
    specs may use the same rows; such specs have the same `column`.
    """

    # The forms of the metrics' names.
    names: ClassVar[Sequence[NameForm]] = ()
    # Clean accuracy is measured along with every other spec, and the model's outputs are checked for it.
    is_clean: ClassVar[bool] = False
    # Accuracy under an attack, for which most images need fewer than `most_passes`.
    under_attack: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the fields that are options (`registry.param`). Raises RbError for an invalid value."""
        for field in dataclasses.fields(self):
            value, label = getattr(self, field.name), f"{field.name} of {type(self).__name__}"
            if "help" not in field.metadata or (value is None and field.default is None):
                continue
            plain(field, value, label)
            check_number(field, value, label)
            choices = field.metadata["choices"]
            if choices and value not in choices:
                raise RbError(f"{label} is {value!r}. Choose from: {', '.join(choices)}.")

    @property
    def random(self) -> bool:
        """Whether the rows depend on the seed."""
        return True

    @property
    def searches(self) -> bool:
        """Whether the spec may use the fast model, because its decisions are confirmed in float32."""
        return False

    @property
    def precise(self) -> bool:
        """True if the fast copy must be in float32, because the search is close to the decision boundary."""
        return False

    @property
    def verdicts(self) -> bool:
        """Whether the rows depend only on the model's decisions, and not on the values of its logits."""
        return False

    @property
    def in_float32(self) -> Sequence[str]:
        """The names of the attacks in an ensemble that do not use the fast model, although others do."""
        return ()

    @property
    def batch_dependent(self) -> bool:
        """Whether the row of an image depends on the other images of its batch. Batches then have the same
        size on all devices, and one process computes all batches."""
        return False

    @property
    def copies(self) -> int:
        """The number of copies of an image in one pass of the network; batches are smaller by this factor."""
        return 1

    @property
    def most_passes(self) -> int:
        """The largest number of passes for an image, which is used to estimate times."""
        return 1

    @property
    def needs(self) -> tuple[Spec, ...]:
        """Specs whose rows are measured before the rows of this spec (`Batch.precomputed`)."""
        return ()

    def name(self) -> str:
        """The metric's name, without a split."""
        raise NotImplementedError

    def column(self) -> Entry:
        """The fields of the store key that determine the rows, except for model, data, arithmetic and seed,
        which are added elsewhere."""
        raise NotImplementedError

    @classmethod
    def reading(cls, specs: Sequence[Any]) -> Entry:
        """The fields of the store key that determine the entries of these specs but not their rows."""
        return {}

    def settings(self) -> Entry:
        """The fields of the entry that do not depend on the rows."""
        raise NotImplementedError

    def expected(self, n: int, common: Entry) -> Entry:
        """The entry for n images as far as it is known before the work, with the `common` fields. A field
        that is known only afterwards (the number of correct images, a loss that may replace another) has the
        value LATER. Raises RbError if the name would be read as other settings."""
        self.check_name()
        entry = {"metric": self.name(), **self.settings(), **common}
        entry |= {"value": 0.0, "ci95": (0.0, 1.0), "seconds": 0.0, "n": n}
        later = ["n"] if entry.get("denominator") == "correct" else []
        later += ["loss"] if "loss" in entry else []
        return entry | dict.fromkeys(later, results.LATER)

    def check_name(self) -> None:
        """Raise RbError if the name would be read as other settings: 1.5.2 can be 1 and 5.2, or 1.5 and 2."""
        mine, parts = self.settings(), metric_name.parse(self.name())
        for field, said in parts.form.settings(parts).items():
            value: Any = mine.get(field)
            numbers = results.is_number(value) and results.is_number(said)
            if numbers and not math.isclose(value, said, rel_tol=1e-3):
                raise RbError(
                    f"The name {self.name()} would be read as {field} {said:g}, and not as {value:g}. Choose"
                    f" another {field}."
                )

    def settings_for(self, shape: Sequence[int]) -> Entry:
        """The settings that depend on the shape (C, H, W) of the images."""
        return {}

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        """The fields of the entry that depend on the rows (n,) or (n, R): value, n, interval and others.
        `totals` are sums over the images of these rows."""
        raise NotImplementedError

    def correct(self, rows: np.ndarray) -> np.ndarray:
        """Whether each image is classified correctly: bool (n,)."""
        return rows > 0

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        """Whether each image counts in the value: bool (n,). None if the value is not a share of images."""
        return self.correct(rows)

    def by_draws(self, draws: int) -> Self | None:
        """The spec for a randomised model: a mean over `draws` passes, or one pass if 0. Returns this spec if
        each noisy copy of an image already has its own pass, and None if no mean is defined."""
        return None

    def for_answers(self, answers: str, *, eight_bit: bool) -> Self:
        """The spec for a model that returns only "logits" or "labels" and, with `eight_bit`, receives 8-bit
        images. Raises RbError if the spec needs more than this."""
        return self

    def without_grid(self) -> Self | None:
        """The spec with real-valued images, for comparison with an accuracy on 8-bit images."""
        return None

    def rows(self, batch: Batch) -> Outcome:
        raise NotImplementedError

    @classmethod
    def rows_together(cls, specs: Sequence[Any], batch: Batch) -> list[Outcome]:
        """Measure the rows of several specs of this class, which may share work."""
        outcomes = []
        for spec in specs:
            found = batch.partial.open()
            if found is None:
                outcome = spec.rows(batch)
                batch.partial.close(outcome.tensors())
            else:
                outcome = Outcome.of_tensors(found)
            outcomes.append(outcome)
        return outcomes

    @classmethod
    def joined(cls, specs: Sequence[Any]) -> list[Any]:
        """Change these specs so that they can be measured together."""
        return list(specs)

    @classmethod
    def summary(cls) -> Summary | None:
        """The function that computes further entries from specs of this class (`Evaluation.summary`)."""
        return None

    def entry(self, rows: np.ndarray, totals: Mapping[str, float] | None = None) -> Entry:
        """The entry computed from these rows, without the fields that describe data, seed and cost."""
        return {"metric": self.name(), **self.settings(), **self.findings(rows, totals or {})}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        """The spec of an entry whose metric names no split. Returns None for other kinds of entries and if
        settings are missing."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class OfAttack(Spec):
    """A result under one attack, `method`."""

    method: Any

    @property
    def most_passes(self) -> int:
        return 1 + int(self.method.most_passes)

    @property
    def random(self) -> bool:
        return bool(self.method.random)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Specs that are measured together.

    `title` is shown in the progress line. `specs` are the requested specs, in the order of their entries,
    and `along` are specs that are also measured. `summary` computes further entries from the specs, their
    entries, the entries of `along`, and the rows. `save` is a folder for the adversarial images. With `png`,
    the images are also saved as PNG files.
    """

    title: str
    specs: tuple[Any, ...]
    along: tuple[Any, ...] = ()
    summary: Summary | None = None
    save: str | None = None
    png: bool = False

    @property
    def every(self) -> tuple[Any, ...]:
        """All specs, in the order in which they are measured."""
        return (*self.along, *self.specs)

    def for_answers(self, answers: str, *, eight_bit: bool) -> Evaluation:
        """The evaluation for a model that can only be queried (`Spec.for_answers`)."""
        specs, along = (
            tuple(spec.for_answers(answers, eight_bit=eight_bit) for spec in part)
            for part in (self.specs, self.along)
        )
        return dataclasses.replace(self, specs=specs, along=along)

    def summarize(
        self, entries: Sequence[Entry], along: Sequence[Entry], rows: RowsOf | None = None
    ) -> list[Entry]:
        """Further entries, computed from the entries of the specs. `rows` is None before the measurement."""
        return [] if self.summary is None else self.summary(self.specs, entries, along, rows)


def by_column(specs: Sequence[Spec]) -> list[tuple[Any, ...]]:
    groups: dict[str, list[Spec]] = {}
    for spec in specs:
        groups.setdefault(repr(spec.column()), []).append(spec)
    return [tuple(group) for group in groups.values()]


def method_key(kind: str, word: str, method: Any) -> Entry:
    """The fields of the store key for a registered method, with its name under the key `word`."""
    return {"kind": kind, word: method.name, "version": method.version, "config": registry.config(method)}


def confidence_of(entry: Mapping[str, Any]) -> float:
    """The confidence of the entry's interval, or 0.95 if the entry has no interval."""
    names = [name for name in entry if schema.is_interval(name)]
    return round(float(names[0].removeprefix("ci")) / 100, 12) if names else 0.95


def rebuilt(methods: Registry, name: object, entry: Mapping[str, Any], **given: Any) -> Any | None:
    """The method called `name` with the settings of an entry. Returns None if there is no such method or if
    settings are missing. Raises RbError if the method does not accept a setting.

    A field in the class's `derived` is computed from other fields if the result agrees with the entry.
    `given` contains values that replace those of the entry.
    """
    cls = methods.of_name(name)
    if cls is None:
        return None
    fields = {registry.public_name(field): field for field in dataclasses.fields(cls)}
    said = {public: entry[public] for public in fields if public in entry and public not in given}
    missing = [field for public, field in fields.items() if public not in {**said, **given}]
    if any(not (field.metadata.get("optional") or field.default is None) for field in missing):
        return None
    derived: frozenset[str] = getattr(cls, "derived", frozenset())
    refused: RbError | None = None
    for without in dict.fromkeys((derived, frozenset())):
        values = {fields[public].name: value for public, value in said.items() if public not in without}
        try:
            made = cls(**values, **given)
        except RbError as wrong:
            refused = wrong
            continue
        except (TypeError, ValueError):
            continue
        found = made.said() if without else registry.config(made)
        if all(found.get(public) == value for public, value in said.items()):
            return made
    if refused is not None:
        raise refused
    return None

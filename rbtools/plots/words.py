"""The texts in figures: labels of metrics and methods, and names of records in legends."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import PurePath
from typing import Any

from rbtools.errors import RbError, near
from rbtools.plots import style
from rbtools.records import expr, metric_name
from rbtools.records.results import at, short_dataset

Record = dict[str, Any]
ELLIPSIS = "…"
LONGEST = 30  # the most characters of a record's name
_WORDS = {
    "score": "composite score",
    "seconds_per_epoch": "training time [seconds per epoch]",
    "params": "parameters",
    "arch.params": "parameters",
    "macs": "multiply-adds",
    "arch.macs": "multiply-adds",
    "kernel_params": "kernel parameters",
    "live_kernel_params": "kernel parameters",
    "wci": "WCI",
    "curve": "minimum distances",
    "robust_acc": "robust training accuracy",
    "val_acc": "validation accuracy",
    "val_robust_acc": "robust validation accuracy",
    "val_robust_loss": "robust validation loss",
    "pgd_acc": "validation accuracy under PGD",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "svhn": "SVHN",
    "mnist": "MNIST",
    "imagenet50": "ImageNet-50",
    "fashionmnist": "Fashion-MNIST",
    "imagenet16-120": "ImageNet16-120",
    "tinyimagenet": "Tiny ImageNet",
    "resnet18": "ResNet-18",
    "preactresnet18": "PreActResNet-18",
    "simplecnn": "SimpleCNN",
    "resnet34": "ResNet-34",
    "vgg19": "VGG-19",
    "wrn-28-10": "WRN-28-10",
    **{name: look.words for name, look in style.METHODS.items()},
}
# The parts of a measure's name. The Frobenius norm and the Hessian of the weights are usual and not named.
_MEASURES = {"ntk": "NTK", "jacobian": "Jacobian", "hessian": "Hessian"}
_OF_MEASURES = {"fro": "", "weight": "", "lmax": "λmax", "labs": "|λ|max"}
_PLACES = {"init": "untrained", "trained": "trained", "train": "train", "test": "test"}


_SIGN = re.compile(r"(?<![=!<>])=(?!=)")  # between a name, which may be a condition, and its words


class _Labels(dict[str, str]):
    """The user's labels by name. `asked` contains all names in the figure."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        self.asked: dict[str, None] = {}

    def get(self, name: str) -> str | None:  # type: ignore[override]
        if self:
            self.asked[name] = None
        return super().get(name)


_OWN: ContextVar[_Labels] = ContextVar("_OWN", default=_Labels({}))  # noqa: B039 - never written to


@contextlib.contextmanager
def own(labels: Sequence[str]) -> Iterator[None]:
    """Use the user's labels, NAME=WORDS, instead of the labels in this module. Raises RbError if a label has
    a different form, or if the figure does not contain the name."""
    if several := next((text for text in labels if re.search(";[^;=]+=", text)), None):
        forms = " ".join(f"--label '{one.strip()}'" for one in several.split(";") if one.strip())
        raise RbError(f"--label is '{several}'. Give the option once for each name: {forms}.")
    pairs = [_SIGN.sub("\0", text, count=1).partition("\0") for text in labels]
    if wrong := [
        (name + "=" * len(sign)).strip() for name, sign, text in pairs if not (name.strip() and text.strip())
    ]:
        raise RbError(f"--label is '{wrong[0]}'. Expected NAME=WORDS, such as pgd20.8=PGD.")
    mine = _Labels({name.strip(): tidy(text) for name, _, text in pairs})
    token = _OWN.set(mine)
    try:
        yield
    finally:
        _OWN.reset(token)
    for name in mine:
        if name not in mine.asked:
            hint = near(name, mine.asked)
            raise RbError(
                f"--label: the figure has no label '{name}'.{hint} It has: {expr.nearest(name, mine.asked)}."
            )


def label(name: object) -> str:
    """The label of a metric, training method or data set, or of several of these separated by commas, such as
    `Corr_U` for `corruption`. Other names and expressions are unchanged, but on one line."""
    text = tidy(name)
    return _OWN.get().get(text) or _words(text)


def _words(text: str) -> str:
    if text in _WORDS:
        return _WORDS[text]
    if ", " in text and "(" not in text:
        return ", ".join(map(label, text.split(", ")))
    heading = metric_name.heading(text)
    measure, *rest = text.split(".")
    if heading == text and measure in _MEASURES:  # a kernel may be computed on attacked images
        of, attack = (rest[:2], ".".join(rest[2:])) if measure == "ntk" else (rest, "")
        parts = (_OF_MEASURES.get(part, part) for part in of if part not in _PLACES)
        said = " ".join(filter(None, [_MEASURES[measure], *parts]))
        places = [_PLACES[part] for part in of if part in _PLACES]
        if measure == "hessian":  # its name lacks weights and split if they are the usual ones
            places = places or ["trained", "train"]
        said += f" ({', '.join(places)})" if places else ""
        return f"{said}, {_words(attack)}" if attack else said
    return heading


def family(name: str, over: str) -> str:
    """The label of all metrics that differ from this metric only in the quantity `over`, such as `PGD-20`."""
    parts = metric_name.parse(name)
    if (own := _OWN.get().get(parts.family)) is not None:
        return own
    bare = parts._replace(prefixes=())
    whole, words = bare.form.heading(bare), _words(name)
    if not words.endswith(whole):  # the user's own label
        return parts.family
    text = words.removesuffix(whole) + bare.form.heading(bare, over)
    return _WORDS.get(text, text)


def with_number(name: str) -> metric_name.MetricName | None:
    """The parts of a metric's name that contains a distance, severity or radius; None for other metrics."""
    parts = metric_name.parse(name)
    return parts if parts.over and {"ge", *metric_name.SPLITS}.issuperset(parts.prefixes) else None


def families(names: Iterable[str], over: str = "") -> dict[tuple[str, str], list[tuple[float, str]]]:
    """Group metrics that differ only in a number, or only in the quantity `over`. The result maps each group,
    a label and the label of its axis, to the sorted numbers and names of its metrics."""
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}
    for name in names:
        parts = with_number(name)
        if parts is None:
            continue
        axes, quantity = parts.form.axes_of(parts), over or parts.over
        others = {"rho": parts.rho, **parts.form.settings(parts), parts.over: parts.number}
        number = others.get(quantity, "") if quantity in axes else ""
        if number == "":
            continue
        label = axes[quantity]
        found.setdefault((family(name, quantity), label), []).append((float(number), name))
    return {key: sorted(members) for key, members in found.items()}


def axis(names: Sequence[str]) -> str:
    """The label of an axis with its unit, for one metric or for the common quantity of several metrics."""
    if len(names) > 1:
        return quantity(names)
    parts, text = metric_name.parse(names[0]), label(names[0])
    if names[0] in _OWN.get():
        return text
    if names[0] == "acc":
        return "clean accuracy"
    attacked = (parts.attacked or parts.over == "severity") and not parts.prefixes
    return f"accuracy under {text}" if attacked and not parts.stem.startswith("cert") else text


def quantity(names: Sequence[str]) -> str:
    """The common quantity of metrics, such as accuracy or PR, for the label of an axis, or else "value"."""
    kinds = {_quantity(name) for name in names}
    return kinds.pop() if len(kinds) == 1 else "value"


_OF_STEM = {"probacc": "ProbAcc", "pr": "probabilistic robustness (PR)", "pfail": "failure probability"}


def _quantity(name: str) -> str:
    bare = metric_name.without_split(name)
    parts = metric_name.parse(bare)
    if parts.is_ge:
        return "generalisation error"
    if parts.over == "gamma" and not parts.prefixes and parts.stem in _OF_STEM:
        return _OF_STEM[parts.stem]
    if bare == "acc" or (parts.stem == "corrupt" and not parts.prefixes and not parts.suffix.endswith("mce")):
        return "accuracy"
    return "accuracy" if with_number(bare) is not None else label(name)


def are_accuracies(names: Sequence[str]) -> bool:
    """Whether all these metrics are shares of images, for which the accuracy of random guessing is known."""
    return all(_quantity(name) == "accuracy" for name in names)


def tidy(text: object) -> str:
    """Put untrusted text on one line and replace unprintable characters by spaces."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)).strip()


def shortened(text: str, most: int = LONGEST) -> str:
    if len(text) <= most:
        return text
    half = (most - 1) // 2
    return text[:half] + ELLIPSIS + text[len(text) - half :]


def method(record: Record) -> str | None:
    """The training method of a record, with the noise of corruption training if it is not uniform."""
    name, noise = (at(record, ("train", *path)) for path in (("method",), ("config", "noise")))
    return f"{name} {noise}" if name == "corruption" and noise not in (None, "uniform") else name


def _parts(record: Record) -> tuple[str | None, ...]:
    dataset, regularize = at(record, ("dataset",)), at(record, ("train", "config", "regularize"))
    if isinstance(regularize, list):
        regularize = "+".join(map(str, regularize))
    if isinstance(record.get("train"), dict):
        regularize = regularize or "none"
    parts = (
        at(record, ("arch", "name")),
        None if dataset is None else short_dataset(str(dataset)),
        method(record),
        regularize,
        at(record, ("train", "seed")),
    )
    return tuple(None if part is None else tidy(part) for part in parts)


def _of_checkpoint(record: Record) -> str | None:
    """The user's label for the file of weights: its path, or the end of it, with or without extension."""
    file = record.get("checkpoint_file")
    if not isinstance(file, str) or not PurePath(file).name:
        return None
    forms = [PurePath(file).parts, PurePath(file).with_suffix("").parts]
    ends = [str(PurePath(*parts[start:])) for parts in forms for start in reversed(range(len(parts)))]
    given = [_OWN.get().get(end) for end in ends]
    return next(filter(None, given), None)


def _files(records: Sequence[Record], names: Sequence[str], sets: Iterable[Sequence[int]]) -> dict[int, str]:
    """For records in the same set whose names are equal, the ends of their checkpoint files that differ."""
    found: dict[int, str] = {}
    for some in sets:
        alike: dict[str, dict[int, tuple[str, ...]]] = {}
        for place in some:
            if isinstance(file := records[place].get("checkpoint_file"), str):
                alike.setdefault(names[place], {})[place] = PurePath(tidy(file)).with_suffix("").parts
        for paths in alike.values():
            distinct = len(set(paths.values()))
            ends = ({place: path[-depth:] for place, path in paths.items()} for depth in range(1, 99))
            end = next((end for end in ends if len(set(end.values())) == distinct), {})
            if distinct > 1:
                found |= {place: "/".join(path) for place, path in end.items()}
    return found


def told_apart(
    records: Sequence[Record], apart: Iterable[Sequence[int]] | None = None
) -> list[tuple[tuple[str | None, ...], str]]:
    """For each record, the parts of its name that differ among the records, and a short name of these parts.
    Equal names get the file of the checkpoint, or a number. Only records in the same set of `apart` (indices)
    are compared."""
    rows = [_parts(record) for record in records]
    sets = [range(len(rows))] if apart is None else list(apart)
    differ = [
        place for place in range(5) if any(len({rows[number][place] for number in some}) > 1 for some in sets)
    ]
    before = ("", "", "", "", "seed ")
    names = []
    for row in rows:
        shown = [before[place] + label(row[place]) for place in differ or [0] if row[place] is not None]
        names.append(shortened(" ".join(shown) or "unnamed"))
    files = _files(records, names, sets)
    for place, file in files.items():
        names[place] = " ".join([names[place]] * bool(differ) + [shortened(file)])
    names = [_of_checkpoint(record) or name for record, name in zip(records, names, strict=True)]
    for some in sets:
        total, met = Counter(names[number] for number in some), Counter[str]()
        for number in some:
            met[name := names[number]] += 1
            numbered = name if total[name] == 1 else f"{name} #{met[name]}"
            names[number] = _OWN.get().get(numbered) or numbered
    tails = [(files.get(place),) * bool(files) for place in range(len(rows))]
    parts = [tuple(row[place] for place in differ) + tail for row, tail in zip(rows, tails, strict=True)]
    return list(zip(parts, names, strict=True))


def tags(records: Sequence[Record]) -> list[str]:
    return [name for _, name in told_apart(records)]


def span(numbers: Collection[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def counted(number: int, noun: str = "record") -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"

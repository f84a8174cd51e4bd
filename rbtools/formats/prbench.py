"""PRBench's public leaderboard: a JSON list of rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.formats import numbers
from rbtools.formats.base import (
    Bad,
    Document,
    Published,
    Record,
    Unit,
    an_object,
    as_text,
    joined,
    latest,
    own_part,
    text_field,
)
from rbtools.formats.naming import Names, described
from rbtools.formats.rows import Row, Values
from rbtools.formats.stream import members
from rbtools.formats.told import Told
from rbtools.records import metrics
from rbtools.registry import param

DATASETS = Names(
    {
        "CIFAR-10": "cifar10",
        "CIFAR-100": "cifar100",
        "Tiny-ImageNet": "tinyimagenet",
        "SVHN": "svhn",
        "MNIST": "mnist",
        "CINIC-10": "cinic10",
        "ImageNet-50": "imagenet50",
    }
)
MODELS = Names(
    {
        "SimpleCNN": "simplecnn",
        "VGG19": "vgg19",
        "ResNet-18": "resnet18",
        "ResNet-34": "resnet34",
        "WRN-28-10": "wrn-28-10",
        "ViT-S": "vit-s",
        "ViT-B": "vit-b",
        "ViT-L": "vit-l",
        "DeiT-Ti": "deit-ti",
        "DeiT-S": "deit-s",
    }
)
METHODS = Names(
    {
        "ERM": "erm",
        "PGD": "pgd",
        "TRADES": "trades",
        "MART": "mart",
        "ALP": "alp",
        "CLP": "clp",
        "KL-PGD": "kl-pgd",
        "CVaR": "cvar",
        "EVaR": "evar",
        "AT-PR": "at-pr",
    }
)
NOISE = "Corr_"  # Corr_Uniform: the method `corruption` with uniform noise
EPS = 8 / 255
# Radii are printed rounded, and the rows of MNIST have the keys of the others: key -> radius.
RADII = {"0.03": EPS, "0.08": 0.08, "0.10": 0.1, "0.12": 0.12}
MNIST_EPS = 0.3
MNIST_RADII = {"0.03": MNIST_EPS, "0.08": 0.35, "0.10": 0.4, "0.12": 0.45}
ATTACKS = {"PGD": ("pgd", "pgd{}"), "CW": ("cw", "cw{}"), "AA": ("aa", "aa"), "FGSM": ("fgsm", "fgsm")}
KNOWN = ("dataset", "model", "method", "acc", "ar", "pr", "probacc", "ge_ar", "ge_pr", "time_s_per_ep")
GROUPS = ("ar", "pr", "probacc", "ge_ar", "ge_pr")


@dataclass(frozen=True, kw_only=True)
class PRBench:
    """PRBench's leaderboard, a JSON list with one row for each data set, network and training method.

    Numbers are percents. Radii are printed rounded: .03 is 8/255, and on MNIST .03 .08 .10 .12 stand for
    .3 .35 .4 .45, as its attacks there are at .3. Noise is uniform, ProbAcc at the smallest radius. What a
    row has besides is kept under "prbench". Reads row by row; writes when all records are there.
    """

    name: ClassVar[str] = "prbench"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    scale: str = param("percent", "What accuracies are in.", choices=numbers.SCALES)

    def units(self, source: Published, told: Told) -> Iterator[Unit | Bad]:
        with source.opened() as stream:
            seen: set[tuple[Any, ...]] = set()
            for path, row in members(stream, 1):
                if path == () or isinstance(path[0], str):
                    raise RbError(f"{source.name} holds no list of rows. Expected a JSON list of objects.")
                where = f"{source.name}: row {int(path[0]) + 1}"
                if not isinstance(row, dict):
                    yield Bad(where, f"It is {numbers.kind(row)}. Expected an object.", as_text(row))
                    continue
                if (key := _key(row)) in seen:
                    told.note(
                        "a row is of the data set, network and method of an earlier one; both are kept", where
                    )
                seen.add(key)
                yield Unit(where, row)

    def record(self, unit: Any, told: Told, where: str) -> Record:
        dataset, model, method = (text_field(unit, key) for key in ("dataset", "model", "method"))
        ours = DATASETS.ours(dataset)
        keys = _Keys(ours)
        row = Row("prbench", told, where, percent=self.scale == "percent")
        over: Record = {key: value for key, value in unit.items() if key not in KNOWN}
        row.accuracy("acc", unit.get("acc"), split="test")
        for group in GROUPS:
            for key, raw in an_object(unit.get(group) or {}, f'The row\'s "{group}"').items():
                found = keys.protocol(group, key)
                if found is None or found["metric"] in row.known:
                    over.setdefault(group, {})[key] = raw
                elif group.startswith("ge_"):
                    row.difference(raw=raw, **found)
                else:
                    row.accuracy(raw=raw, **found)
        row.plain("seconds_per_epoch", unit.get("time_s_per_ep"))
        row.check_scale()
        train, arch = _train(method), _arch(model, ours)
        for name, published, back in (
            ("dataset", dataset, DATASETS.theirs(ours)),
            ("model", model, _model(arch)),
            ("method", method, _method(train)),
        ):
            if published != back:
                over[name] = published
        return row.record(arch, dataset=ours, train=train, prbench=numbers.plain(over))

    def unit(self, record: Record) -> Any:
        arch, train, dataset = record["arch"], record.get("train") or {}, record.get("dataset")
        if not isinstance(dataset, str) or not isinstance(arch.get("name"), str) or "method" not in train:
            raise RbError(
                "A row of PRBench has a data set, a network and a method. Expected a record with dataset,"
                " arch.name and train.method, such as rb-train writes."
            )
        over = own_part(record.get("prbench"))
        keys, values = _Keys(dataset), Values(record, percent=self.scale == "percent")
        row: Record = {
            "dataset": over.pop("dataset", DATASETS.theirs(dataset)),
            "model": over.pop("model", _model(arch)),
            "method": over.pop("method", _method(train)),
            "acc": values.scaled("acc"),
        }
        for metric in values.metrics:
            if place := keys.place(metric, values.entries.get(metric, {}).get("key")):
                row.setdefault(place[0], {})[place[1]] = values.scaled(metric)
        row["time_s_per_ep"] = values.plain("seconds_per_epoch")
        for key, value in over.items():
            row[key] = {**row.get(key, {}), **own_part(value)} if key in GROUPS else value
        known = {key: row.pop(key, None) for key in KNOWN}
        return {key: value for key, value in known.items() if value is not None} | row

    def documents(self, units: Iterable[Unit], told: Told) -> Iterator[Document]:
        yield Document("", joined(latest(units, _key, told)))


def _key(row: Record) -> tuple[str, ...]:
    return tuple(str(row.get(key)) for key in ("dataset", "model", "method"))


def _train(method: str) -> Record:
    if method.startswith(NOISE):
        return {"method": "corruption", "config": {"noise": method.removeprefix(NOISE).lower()}}
    return {"method": METHODS.ours(method)}


def _method(train: Record) -> str:
    noise = own_part(train.get("config")).get("noise")
    if train["method"] == "corruption" and isinstance(noise, str):
        return NOISE + noise.capitalize()
    return METHODS.theirs(str(train["method"]))


def _arch(model: str, dataset: str) -> Record:
    if model.startswith("nb201-"):
        return described({"space": "nasbench201", "name": model}, dataset)
    zoo = MODELS.ours(model)
    return described({"space": "zoo" if zoo in MODELS.published else "prbench", "name": zoo}, dataset)


def _model(arch: Record) -> str:
    return MODELS.theirs(str(arch["name"]))


class _Keys:
    """The keys inside a row and the metrics they mean, on one data set."""

    def __init__(self, dataset: str) -> None:
        mnist = dataset == "mnist"
        self.radii, self.eps = (MNIST_RADII, MNIST_EPS) if mnist else (RADII, EPS)

    def protocol(self, group: str, key: str) -> Record | None:
        """The metric of a key and how it was measured; None for a key that is not known.

        A key that is spelled otherwise than here ("0.1") is kept.
        """
        found = self._meant(group, key)
        if found is None or self.place(found["metric"]) == (group, key):
            return found
        return {**found, "key": key}

    def _meant(self, group: str, key: str) -> Record | None:
        if group == "probacc":
            rho = _number(key)
            if rho is None:
                return None
            name = metrics.prob_acc_name("uniform", self.eps, rho)
            return {"metric": name, "gamma": self.eps, "rho": rho, "noise": "uniform", "split": "test"}
        found = self._radius(key) if group.endswith("pr") else self._attack(key)
        if found is None or not group.startswith("ge_"):
            return found and {**found, "split": "test"}
        return {**found, "metric": metrics.ge_name(found["metric"])}

    def _radius(self, key: str) -> Record | None:
        gamma = self.radii.get(key, _number(key))
        if gamma is None:
            return None
        return {"metric": metrics.pr_name("uniform", gamma), "gamma": gamma, "noise": "uniform"}

    def _attack(self, key: str) -> Record | None:
        word = re.fullmatch(r"([A-Z]+)(\d*)", key)
        if word is None or word[1] not in ATTACKS or bool(word[2]) != (word[1] in ("PGD", "CW")):
            return None
        attack, stem = ATTACKS[word[1]]
        name = metrics.attack_name(stem.format(word[2]), self.eps)
        steps = {"steps": int(word[2])} if word[2] else {}
        return {"metric": name, "attack": attack, "norm": "linf", "eps": self.eps, **steps}

    def place(self, metric: str, spelled: str | None = None) -> tuple[str, str] | None:
        """The group and key of a metric; None where a row has no place for it."""
        found_in = list(self._candidates(metric))
        if spelled is not None:
            found_in = [*((group, spelled) for group, _ in found_in), *found_in]
        for group, key in found_in:
            found = self._meant(group, key)
            if found is not None and found["metric"] == metric:
                return group, key
        return None

    def _candidates(self, metric: str) -> Iterator[tuple[str, str]]:
        ge, name = ("ge_", metric.removeprefix("ge.")) if metric.startswith("ge.") else ("", metric)
        parts = name.split(".")
        if parts[0] == "probacc":
            text = name.removeprefix(metrics.prob_acc_name("uniform", self.eps, 0)[:-1])
            yield from (("probacc", key) for key in _spellings(text))
        elif parts[0] == "pr":
            text = name.removeprefix("pr.uniform.")
            yield from ((f"{ge}pr", key) for key in (*self.radii, *_spellings(text)))
        else:
            yield f"{ge}ar", parts[0].upper()


def _spellings(text: str) -> Iterator[str]:
    if (value := _number(text)) is not None:
        yield f"{value:.2f}"
        yield f"{value:g}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < 1 else None

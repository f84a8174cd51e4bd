"""PRBench's published results: a JSON list of rows, in two layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.formats import numbers
from rbtools.formats.base import Bad, Document, Published, Record, Unit, as_text, own_part
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.naming import described
from rbtools.formats.rows import DIFFERENCE, MetricValues, PublishedRow
from rbtools.papers.formats.published_json import NameMap, an_object, dumps, latest, parsed, text_field
from rbtools.records import metric_name
from rbtools.registry import param

DATASETS = NameMap(
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
MODELS = NameMap(
    {
        "SimpleCNN": "simplecnn",
        "VGG19": "vgg19",
        "ResNet-18": "resnet18",
        "ResNet-34": "resnet34",
        "WRN-28-10": "wrn-28-10",
        "ViT-S": "vit-s",
        "ViT-B": "vit-b",
        "ViT-L": "vit-l",
        "DeiT-T": "deit-ti",
        "DeiT-Ti": "deit-ti",
        "DeiT-S": "deit-s",
    }
)
METHODS = NameMap(
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
LARGER = ("tinyimagenet", "imagenet50")  # data sets whose images are larger than 32 pixels
NOISE = "Corr_"  # Corr_Uniform: the method `corruption` with uniform noise
EPS = 8 / 255
# Maps keys to radii. The code rounds 8/255 to .03 (evaluate.py). MNIST's rows have the keys of other sets.
RADII = {"0.03": 0.03, "0.08": 0.08, "0.10": 0.1, "0.12": 0.12}
MNIST_EPS = 0.3
MNIST_RADII = {"0.03": MNIST_EPS, "0.08": 0.35, "0.10": 0.4, "0.12": 0.45}
# The criterion of the published ProbAcc (wellzline/PRBenchmark, evaluate.py). It is stricter than the text.
CRITERION = "PR > 1 - rho"
SAMPLES = 100  # noise samples for each image in that code
ATTACKS = {"PGD": ("pgd", "pgd{}"), "CW": ("cw", "cw{}"), "AA": ("aa", "aa"), "FGSM": ("fgsm", "fgsm")}
# Groups with the PR under one noise: `pr` is in the leaderboard, the others are in the other file.
PR_GROUPS = {"pr": "uniform", "pr_uniform": "uniform", "pr_gaussian": "gaussian", "pr_laplace": "laplace"}
# `ge` in the other file contains the generalisation error of PR at the smallest radius, for each noise.
GE_NOISES = {"uni": "uniform", "gau": "gaussian", "lap": "laplace"}
GROUPS = ("ar", *PR_GROUPS, "probacc", "ge_ar", "ge_pr", "ge")
KNOWN = ("dataset", "model", "method", "acc", *GROUPS, "time_s_per_ep")


@dataclass(frozen=True, kw_only=True)
class PRBench:
    """PRBench's results, a JSON list with one row for each data set, network and training method.

    Two published files can be read. The leaderboard (prbench_table9.json) contains uniform noise, and
    prbench_table8.json contains PR under uniform, Gaussian and Laplace noise. Numbers in the files are
    percentages. The smallest radius is 8/255 in the paper's text, but .03 in its code, which produced the
    numbers. On MNIST, .03 .08 .10 .12 mean .3 .35 .4 .45, because PRBench's attacks on MNIST have distance
    .3. ProbAcc and "ge" are measured at the smallest radius. An image counts in ProbAcc if its PR is above
    1 - rho, as in the public code. The generalisation error of PR is the error over all images
    (ge.pr-all.NOISE.GAMMA), because 433 of 540 published values would be impossible over only the images that
    are correct without noise. The entries describe the noise of the public code, in which uniform noise has
    "truncate". The architecture of a ResNet for images above 32 pixels has the field pool with the value 4x4.
    Other fields of a row are kept under "prbench".
    """

    name: ClassVar[str] = "prbench"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    scale: str = param("percent", "Unit of accuracies.", choices=numbers.SCALES)
    radius: str = param(
        "code",
        "The meaning of the radius .03 in the file: .03 (as in the code) or 8/255 (as in the text).",
        choices=("code", "text"),
    )

    def units(self, source: Published, report: ConversionReport) -> Iterator[Unit | Bad]:
        rows = parsed(source.read())
        if not isinstance(rows, list):
            raise RbError(f"{source.name} does not contain a list of rows. Expected a JSON list of objects.")
        seen: set[tuple[Any, ...]] = set()
        for number, row in enumerate(rows, 1):
            where = f"{source.name}: row {number}"
            if not isinstance(row, dict):
                yield Bad(where, f"It is {numbers.kind(row)}. Expected an object.", as_text(row))
                continue
            if (key := _key(row)) in seen:
                report.note(
                    "a row has the same data set, network and method as an earlier one; both are kept", where
                )
            seen.add(key)
            yield Unit(where, row)

    def record(self, unit: dict[str, Any], report: ConversionReport, where: str) -> Record:
        dataset, model, method = (text_field(unit, key) for key in ("dataset", "model", "method"))
        ours = DATASETS.ours(dataset)
        keys = _Keys(ours, self.radius)
        row = PublishedRow("prbench", report, where, percent=self.scale == "percent")
        over: Record = {key: value for key, value in unit.items() if key not in KNOWN}
        for key in over:
            report.note(_UNREAD.format(key), where)
        row.add("acc", unit.get("acc"), split="test")
        for group in GROUPS:
            for key, raw in an_object(unit.get(group) or {}, f'The row\'s "{group}"').items():
                protocol = keys.protocol(group, key)
                if protocol is None or protocol["metric"] in row.known:
                    over.setdefault(group, {})[key] = raw
                    report.note(_UNREAD.format(f"{group}.{key}"), where)
                elif group.startswith("ge"):
                    row.add(raw=raw, limits=DIFFERENCE, **protocol)
                else:
                    row.add(raw=raw, **protocol)
        row.add("seconds_per_epoch", unit.get("time_s_per_ep"), False, limits=None)
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
                "A row of PRBench needs a data set, a network and a method. Expected a record with dataset,"
                " arch.name and train.method, as rb-train writes it."
            )
        over = own_part(record.get("prbench"))
        keys, values = _Keys(dataset, self.radius), MetricValues(record, percent=self.scale == "percent")
        row: Record = {
            "dataset": over.pop("dataset", DATASETS.theirs(dataset)),
            "model": over.pop("model", _model(arch)),
            "method": over.pop("method", _method(train)),
            "acc": values.value("acc"),
        }
        for metric in values.metrics:
            if place := keys.place(metric, values.entries.get(metric, {}).get("key")):
                row.setdefault(place[0], {})[place[1]] = values.value(metric)
        row["time_s_per_ep"] = values.value("seconds_per_epoch", False)
        for key, value in over.items():
            row[key] = {**row.get(key, {}), **own_part(value)} if key in GROUPS else value
        known = {key: row.pop(key, None) for key in KNOWN}
        return {key: value for key, value in known.items() if value is not None} | row

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        rows = map(dumps, latest(units, _key, report))
        yield Document("", b"[\n" + b",\n".join(rows) + b"\n]\n")


_UNREAD = "the key '{}' is unknown; it is kept under \"prbench\""


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
    arch = {"space": "zoo" if zoo in MODELS.published else "prbench", "name": zoo}
    if zoo in ("resnet18", "resnet34") and dataset in LARGER:  # cifar_model/resnet.py
        arch |= {"stem": "cifar", "pool": "4x4"}
    return described(arch, dataset)


def _model(arch: Record) -> str:
    return MODELS.theirs(str(arch["name"]))


class _Keys:
    def __init__(self, dataset: str, radius: str) -> None:
        mnist = dataset == "mnist"
        self.radii, self.eps = (MNIST_RADII, MNIST_EPS) if mnist else (RADII, EPS)
        if radius == "text" and not mnist:
            self.radii = {**RADII, "0.03": EPS}
        self.smallest = self.radii["0.03"]

    def protocol(self, group: str, key: str) -> Record | None:
        """The metric for a key, and the metric's protocol; None for an unknown key. A key that we
        spell differently ("0.1"), or in another group, is kept as "KEY" or "GROUP/KEY"."""
        meant = self._meant(group, key)
        if meant is None or self.place(meant["metric"]) == (group, key):
            return meant
        spelled = key if self.place(meant["metric"], key) == (group, key) else f"{group}/{key}"
        return {**meant, "key": spelled}

    def _meant(self, group: str, key: str) -> Record | None:
        if group == "probacc":
            rho = _number(key)
            if rho is None:
                return None
            name = metric_name.prob_acc_name("uniform", self.smallest, rho)
            settings = {**_noise("uniform", self.smallest, "correct"), "rho": rho, "criterion": CRITERION}
            return {"metric": name, **settings, "split": "test"}
        if group == "ge":
            return self._gap(GE_NOISES[key], self.smallest) if key in GE_NOISES else None
        if group in PR_GROUPS or group == "ge_pr":
            gamma = self.radii.get(key, _number(key))
            if gamma is None:
                return None
            if group == "ge_pr":
                return self._gap("uniform", gamma)
            noise = PR_GROUPS[group]
            name = metric_name.pr_name(noise, gamma)
            return {"metric": name, **_noise(noise, gamma, "correct"), "split": "test"}
        attack = self._attack(key)
        if attack is None or group == "ar":
            return attack and {**attack, "split": "test"}
        return {**attack, "metric": metric_name.ge_name(attack["metric"]), "split": "train-test"}

    @staticmethod
    def _gap(noise: str, gamma: float) -> Record:
        name = metric_name.ge_name(metric_name.pr_name(noise, gamma, "all"))
        return {"metric": name, **_noise(noise, gamma, "all"), "split": "train-test"}

    def _attack(self, key: str) -> Record | None:
        word = re.fullmatch(r"([A-Z]+)(\d*)", key)
        if word is None or word[1] not in ATTACKS or bool(word[2]) != (word[1] in ("PGD", "CW")):
            return None
        attack, stem = ATTACKS[word[1]]
        name = metric_name.attack_name(stem.format(word[2]), metric_name.eps_name(self.eps))
        steps = {"steps": int(word[2])} if word[2] else {}
        return {"metric": name, "attack": attack, "norm": "linf", "eps": self.eps, **steps}

    def place(self, metric: str, spelled: str | None = None) -> tuple[str, str] | None:
        """The group and key of a metric; None if a row has no key for the metric."""
        candidates = list(self._candidates(metric))
        if spelled is not None:
            group, slash, key = spelled.partition("/")
            own = (
                [(group, key)]
                if slash and group in GROUPS
                else [(candidate, spelled) for candidate, _ in candidates]
            )
            candidates = [*own, *candidates]
        for group, key in candidates:
            protocol = self._meant(group, key)
            if protocol is not None and protocol["metric"] == metric:
                return group, key
        return None

    def _candidates(self, metric: str) -> Iterator[tuple[str, str]]:
        parts = metric_name.parse(metric)
        if parts.stem == "probacc":
            yield from (("probacc", key) for key in _spellings(parts.rho))
        elif parts.over == "gamma":
            of_noise = [group for group, noise in PR_GROUPS.items() if noise == parts.of]
            groups = ["ge_pr"] if parts.is_ge else of_noise
            yield from ((group, key) for group in groups for key in (*self.radii, *_spellings(parts.number)))
            yield from (("ge", key) for key in GE_NOISES if parts.is_ge)
        else:
            yield "ge_ar" if parts.is_ge else "ar", parts.words[parts.is_ge].upper()


def _noise(noise: str, gamma: float, denominator: str) -> Record:
    """Noise fields as in the public code, which truncates uniform noise and clips other noise."""
    cut = {"truncate": True} if noise == "uniform" else {}
    settings = {"gamma": gamma, "samples": SAMPLES, "noise": noise, "norm": "linf", "clip": True, **cut}
    return {**settings, "denominator": denominator}


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

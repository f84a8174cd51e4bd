"""Metric names: building, parsing, direction, and the metric that was evaluated last for a record. No other
module parses names.

Names go from the general to the specific: `pgd20.8`, `corrupt.fog.3`, `pr.uniform.0.08`. Their numbers are
formatted with `%g`. A split other than test is the first word: `train.pgd20.8`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from rbtools.errors import RbError

SPLITS = ("train", "valid", "val")
DIFFERENCE = "test_minus_train"

# Lower is better for names that begin with one of these, or have one of these as a part.
LOWER_FAMILIES = frozenset(
    ("ge", "wci", "jacobian", "hessian", "sharpness", "nu", "params", "macs", "flops", "pfail")
)
_LOWER_PART = r"seconds(_.*)?$|(.*_)?(loss|error|gap|mce|seconds|cond|bound)$"
_IN_L2 = ("cw-l2", "ddn", "cert.smooth")  # attacks and certificates in L2 without the norm in the name
# Prefixes of accuracies on the examples of another model (transfer) or of the network without its stages.
OF_OTHERS = frozenset(("transfer",))
_OVER = {"correct": "", "all": "-all"}  # the images that a probabilistic metric averages over
_SUMMARY = r"(?:mean|median|min|max|sum)\((.*)\)"
# Narrow headings are broken before numbers (such as 0.05), words and values (ε = 8/255).
_PIECE = r"[εγρσ] = [^ ]+ ?|\.\d+(?:\.\d+)?|[._]?[^._ ]+ ?|."


class MetricName(NamedTuple):
    """The parts of a metric's name, in order; missing parts are empty texts.

    prefixes: split, `ge` and other words at the beginning. stem: an attack with its steps (`pgd20`), `pr`,
    `pr-all`, `probacc`, `probacc-all`, `pfail`, `corrupt`, `cert.smooth`, or in any other name all the rest.
    of: the noise, its sigma, or the corruption. number: eps, gamma or severity as it is written. suffix: the
    words after the number (`mean`, `loss`).
    """

    stem: str
    of: str = ""
    norm: str = ""
    number: str = ""
    rho: str = ""
    suffix: str = ""
    prefixes: tuple[str, ...] = ()

    def build(self) -> str:
        """The name with these parts."""
        parts = (*self.prefixes, self.stem, self.of, self.norm, self.number, self.rho, self.suffix)
        return ".".join(filter(None, parts))

    @property
    def family(self) -> str:
        """The common name of metrics that differ in distance, radius or severity: `train.pgd20.l2`."""
        return ".".join(filter(None, (*self.prefixes, self.stem, self.of, self.norm)))

    @property
    def words(self) -> list[str]:
        """The words of the stem before norm and number: `ntk`, `robust` and `pgd` of `ntk.robust.pgd.8`."""
        return [*self.prefixes, *self.stem.split("."), *filter(None, [self.of])]

    @property
    def last(self) -> str:
        """The last word that is not a number: `mce` of `corrupt.mce`."""
        return (self.suffix.split(".") if self.suffix else self.words)[-1]

    @property
    def over(self) -> Literal["", "eps", "gamma", "severity"]:
        """The quantity that `number` is a value of."""
        if not self.number or self.suffix:
            return ""
        if self.stem == "corrupt":
            return "severity"
        return "gamma" if self.of and self.stem != "cert.smooth" else "eps"

    @property
    def ball(self) -> Literal["linf", "l1", "l2"]:
        """The norm of the distance. L-infinity distances are in 1/255; others are for pixels in [0, 1]."""
        if self.norm in ("l1", "l2"):
            return self.norm  # type: ignore[return-value]
        return "l2" if self.stem in _IN_L2 else "linf"

    @property
    def is_ge(self) -> bool:
        """Whether it is a generalisation error, train - test."""
        return self.prefixes[:1] == ("ge",)

    @property
    def is_gap(self) -> bool:
        """Whether it is test - train."""
        return self.prefixes[:1] == (DIFFERENCE,)

    @property
    def split(self) -> str:
        """The split in the name; `test` if there is none."""
        return self.prefixes[0] if self.prefixes and self.prefixes[0] in SPLITS else "test"

    def rest(self) -> MetricName:
        """The name without its first prefix."""
        return self._replace(prefixes=self.prefixes[1:])


@lru_cache
def _forms() -> list[re.Pattern[str]]:
    """The patterns of names, compiled on first use: a tool that only prints its version needs none."""
    number, rate = r"\d+(?:\.\d+)?(?:e[-+]?\d+)?", r"0(?:\.\d+)?|\d(?:\.\d+)?e-\d+|1"
    forms = (
        rf"(?P<stem>probacc(?:-all)?)\.(?P<of>[a-z]+)\.(?P<number>{number})\.(?P<rho>{rate})",
        rf"(?P<stem>cert\.smooth)\.(?P<of>{number})\.(?P<number>{number})",
        rf"(?P<stem>pr(?:-all)?|pfail)\.(?P<of>[a-z]+)\.(?P<number>{number})",
        rf"(?P<stem>cert\.linf|cert(?=\.l2\.))(?:\.(?P<norm>l2))?\.(?P<number>{number})",
        r"(?P<stem>corrupt)(?:\.(?P<of>[^.]+)(?=\.))?(?:\.(?P<number>[1-5])(?=\.|$))?(?:\.(?P<suffix>.+))?",
        rf"(?P<stem>(?!l[12]\.)[a-z][a-z-]*\d*)(?:\.(?P<norm>l[12]))?\.(?P<number>{number})(?:\.(?P<suffix>[a-z_]+))?",
    )
    return [re.compile(r"(?P<prefixes>(?:[a-z_]+\d*\.)*)" + form) for form in forms]


@lru_cache(maxsize=4096)
def parse(name: str) -> MetricName:
    """The parts of a name. If its form is unknown, all words after the known prefixes are the stem."""
    for form in _forms():
        if match := form.fullmatch(name):
            parts = {key: text or "" for key, text in match.groupdict().items()}
            return MetricName(prefixes=tuple(parts.pop("prefixes").split(".")[:-1]), **parts)
    words = name.split(".")
    count = 0
    while words[count] in ("ge", *SPLITS, DIFFERENCE) and any(words[count + 1 :]):
        count += 1
    return MetricName(".".join(words[count:]), prefixes=tuple(words[:count]))


def heading_pieces(name: str) -> list[str]:
    """A name in pieces; a narrow column breaks it between them."""
    return re.findall(_PIECE, name)


def eps_name(eps: float, norm: str = "linf") -> str:
    """A distance in pixel units of [0, 1], as names contain it: L-infinity in 1/255 (8/255 is "8"), L2 as it
    is."""
    return f"{eps * 255:g}" if norm == "linf" else f"{eps:g}"


def attack_name(stem: str, eps: float, norm: str = "linf") -> str:
    """`pgd20.8`: the accuracy under an attack (here with 20 steps) at eps 8/255. In another norm, the stem of
    the attack includes the norm (`pgd20.l2.0.5`)."""
    return f"{stem}.{eps_name(eps, norm)}"


def corrupt_name(corruption: str, severity: int | str) -> str:
    """`corrupt.fog.3`: the accuracy under a corruption of severity 3; `corrupt.fog.mean`: its mean over all
    severities."""
    return f"corrupt.{corruption}.{severity}"


def pr_name(noise: str, gamma: float, denominator: str = "correct") -> str:
    """`pr.uniform.0.08`: the share of noisy copies that are classified correctly, for the images that are
    correct without noise; for all images, `pr-all.uniform.0.08`."""
    return f"pr{_OVER[denominator]}.{noise}.{gamma:g}"


def prob_acc_name(noise: str, gamma: float, rho: float, denominator: str = "correct") -> str:
    """`probacc.uniform.0.0313725.0.05`, with the radius and the tolerated failure rate; for all images,
    `probacc-all`."""
    return f"probacc{_OVER[denominator]}.{noise}.{gamma:g}.{rho:g}"


def pfail_name(noise: str, gamma: float) -> str:
    """`pfail.uniform.0.1`: the mean probability of failure."""
    return f"pfail.{noise}.{gamma:g}"


def smoothing_name(sigma: float, radius: float) -> str:
    """`cert.smooth.0.25.0.5`: the certified accuracy of the smoothed classifier, for sigma 0.25 and the L2
    radius 0.5."""
    return f"cert.smooth.{sigma:g}.{radius:g}"


def ge_name(metric: str) -> str:
    """`ge.pgd20.8`: the generalisation error of `pgd20.8`."""
    return f"ge.{metric}"


def sides_of_ge(metric: str) -> tuple[str, str]:
    """The metrics on train and on test whose difference is `ge.NAME`."""
    parts = parse(metric)
    name = parts._replace(prefixes=tuple(word for word in parts.prefixes if word != "ge")).build()
    return split_name(name, "train"), split_name(name, "test")


def gap_name(metric: str) -> str:
    """`test_minus_train.loss.pgd20.8`, for quantities that grow with overfitting; the name shows the
    direction."""
    return f"test_minus_train.{metric}"


def split_name(metric: str, split: str) -> str:
    """`train.pgd20.8`: the metric as measured on that split; a name without a split means `test`."""
    return metric if split == "test" else f"{split}.{metric}"


def without_split(metric: str) -> str:
    """The metric without the split in front."""
    for split in SPLITS:
        metric = metric.removeprefix(f"{split}.")
    return metric


def higher_is_better(metric: str) -> bool:
    """Whether higher is better; True for a name that does not tell.

    Works also for expressions such as `mean(ge.*, wci)`: lower is better if this is so for every name in it.
    """
    summary = re.fullmatch(_SUMMARY, metric.strip())
    if summary:
        return any(higher_is_better(part) for part in summary[1].split(","))
    parts = without_split(metric.strip()).removeprefix("arch.").split(".")
    if parts[:2] == ["bound", "robbench2"]:  # a lower bound that uses the smallest eigenvalue
        return True
    return parts[0] not in LOWER_FAMILIES and not any(re.match(_LOWER_PART, part) for part in parts)


def is_share(metric: str) -> bool:
    """Whether the metric is a share of images or copies, or a difference of two shares (`ge.acc`)."""
    parts = parse(without_split(metric))
    if parts.is_ge:
        parts = parts.rest()
    if {*parts.prefixes} - OF_OTHERS:
        return False
    if parts.suffix:
        return parts.stem == "corrupt" and parts.suffix == "mean"
    shares = ("acc", "acc-among", "pr", "pr-all", "probacc", "probacc-all", "cert")
    return parts.stem in shares or parts.over in ("eps", "severity")


def of_other_network(metric: str) -> bool:
    """Whether its adversarial examples were made for another network than the one that classified them."""
    return not OF_OTHERS.isdisjoint(parse(metric).prefixes)


def is_share_of_images(metric: str) -> bool:
    """Whether the metric is a share of images, each of which counts or not. Shares of noisy copies, means
    over corruptions and gaps between splits are not."""
    parts = parse(without_split(metric))
    return is_share(metric) and not (parts.is_ge or parts.suffix or parts.stem in ("pr", "pr-all"))


def last_evaluated(record: Mapping[str, Any]) -> str | None:
    """The metric of the last entry of `evals` that has a value; without entries, the last of `metrics`."""
    metrics = record.get("metrics") or {}
    for entry in reversed(record.get("evals") or []):
        if entry.get("metric") in metrics:
            return str(entry["metric"])
    return next(reversed(metrics), None)


def default_rank_key(records: Iterable[Mapping[str, Any]]) -> str:
    """The default sort key: `score` if there is one, else the metric that was evaluated last. If records
    differ in it, the most frequent one (the first, if several are equally frequent). Raises RbError if no
    record has a metric.
    """
    last: Counter[str] = Counter()
    for record in records:
        if "score" in (record.get("metrics") or {}):
            return "score"
        name = last_evaluated(record)
        if name is not None:
            last[name] += 1
    if not last:
        raise RbError(
            "No record has a metric to rank by. Evaluate the models first, for example with"
            " rb-attack pgd --eps 8."
        )
    return last.most_common(1)[0][0]


def names(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """All metrics of these records, in order of first occurrence."""
    seen: dict[str, None] = {}
    for record in records:
        seen.update(dict.fromkeys(record.get("metrics") or ()))
    return list(seen)

"""Metric names: building and parsing a name, the direction of a metric, and the metric that was evaluated
last. No other module parses metric names.

Names begin with the general part and end with the most specific part: `pgd20.8`, `corrupt.fog.3`,
`pr.uniform.0.08`. Numbers in a name are formatted with `%g`. If the split is not test, the name begins with
the split: `train.pgd20.8`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from rbtools.errors import RbError
from rbtools.records import name_forms
from rbtools.records.name_forms import UNKNOWN, NameForm
from rbtools.registry import Registry

SPLITS = ("train", "valid", "val")
DIFFERENCE = "test_minus_train"

# Lower is better for names that begin with one of these, or have one of these as a part.
LOWER_FAMILIES = frozenset(
    ("ge", "wci", "jacobian", "hessian", "sharpness", "nu", "params", "macs", "flops", "pfail")
)
_LOWER_PART = r"seconds(_.*)?$|(.*_)?(loss|error|gap|mce|seconds|cond|bound)$"
# Prefixes of accuracies on the examples of another model (transfer) or of the network without its stages.
OF_OTHERS = frozenset(("transfer",))
_OVER = {"correct": "", "all": "-all"}  # the images that a probabilistic metric averages over
_SUMMARY = r"(?:mean|median|min|max|sum)\((.*)\)"
# Narrow headings are broken before numbers (such as 0.05), words and values (ε = 8/255).
_PIECE = r"[εγρσ] = [^ ]+ ?|\.\d+(?:\.\d+)?|[._]?[^._ ]+ ?|."


class MetricName(NamedTuple):
    """The parts of a metric's name, in order; missing parts are empty strings.

    `prefixes` contains the split, `ge` and other words at the beginning. `stem` is an attack with its steps
    (`pgd20`), `pr`, `pr-all`, `probacc`, `probacc-all`, `pfail`, `corrupt` or `cert.smooth`; in any other
    name, it contains all further words. `of` is the noise, the sigma of the noise, or the corruption. `norm`
    is the norm or the threat (`l2`), with those of its settings that are before the number. `number` is eps,
    gamma, severity or another strength as it is written, and `fixed` contains the settings after it. `eot` is
    the number of samples in each pass over a randomised model, if it is not the usual one (`pgd20-eot10.8`).
    `suffix` contains the words after the number (`mean`, `loss`). `form` is the `NameForm` of the name.
    """

    stem: str
    of: str = ""
    norm: str = ""
    number: str = ""
    fixed: str = ""
    eot: str = ""
    rho: str = ""
    suffix: str = ""
    prefixes: tuple[str, ...] = ()
    form: NameForm = UNKNOWN

    @property
    def method(self) -> str:
        """The stem with the number of samples of each pass, if the name contains it: `pgd20-eot10`."""
        return f"{self.stem}-eot{self.eot}" if self.eot else self.stem

    def build(self) -> str:
        numbers = (self.number, self.fixed, self.rho)
        return ".".join(
            filter(None, (*self.prefixes, self.method, self.of, self.norm, *numbers, self.suffix))
        )

    @property
    def family(self) -> str:
        """The common part of names with different distances, radii or severities: `train.pgd20.l2`."""
        return ".".join(filter(None, (*self.prefixes, self.method, self.of, self.norm, self.fixed)))

    @property
    def words(self) -> list[str]:
        """The words before norm and number: `ntk`, `robust` and `pgd` for `ntk.robust.pgd.8`."""
        return [*self.prefixes, *self.method.split("."), *filter(None, [self.of])]

    @property
    def last(self) -> str:
        """The last word that is not a number, such as `mce` for `corrupt.mce`."""
        return (self.suffix.split(".") if self.suffix else self.words)[-1]

    @property
    def over(self) -> str:
        """The quantity whose value is `number`, such as eps, gamma or severity."""
        return next(iter(self.form.axes_of(self)), "") if self.number and not self.suffix else ""

    @property
    def attacked(self) -> bool:
        """True for an accuracy at a strength of an attack or certificate."""
        return bool(self.number) and not self.suffix and self.form.attacked(self)

    @property
    def is_ge(self) -> bool:
        return self.prefixes[:1] == ("ge",)

    @property
    def is_gap(self) -> bool:
        return self.prefixes[:1] == (DIFFERENCE,)

    @property
    def split(self) -> str:
        """The split in the name; `test` if there is none."""
        return self.prefixes[0] if self.prefixes and self.prefixes[0] in SPLITS else "test"

    def rest(self) -> MetricName:
        return self._replace(prefixes=self.prefixes[1:])


def parse(name: str) -> MetricName:
    """Split a name. If no kind of result has such names, the stem contains all words after the known
    prefixes."""
    return _parsed(name, Registry.changes)


@lru_cache(maxsize=4096)
def _parsed(name: str, changes: int) -> MetricName:
    """`changes` is the state of the registries: a user's own attack makes its names known."""
    for form in name_forms.forms():
        if (parts := form.parsed(name)) is not None:
            return parts
    words = name.split(".")
    count = 0
    while words[count] in ("ge", *SPLITS, DIFFERENCE) and any(words[count + 1 :]):
        count += 1
    return MetricName(".".join(words[count:]), prefixes=tuple(words[:count]))


def heading(name: str) -> str:
    """Return the heading of a metric's column, such as `PR uniform, γ = 0.08`; expressions are unchanged."""
    parts = parse(name)
    first = parts.prefixes[0] if parts.prefixes else ""
    if first in ("ge", *SPLITS, *OF_OTHERS):
        return f"{'GE' if first == 'ge' else f'{first}:'} {heading(parts.rest().build())}"
    if first:
        return name
    return "seconds per epoch" if name == "seconds_per_epoch" else parts.form.heading(parts)


def heading_pieces(name: str) -> list[str]:
    """Return the name in pieces; a narrow column may break the name between two pieces."""
    return re.findall(_PIECE, name)


def eps_name(eps: float, norm: str = "linf") -> str:
    """A distance (for pixels in [0, 1]) as it is written in names: L-infinity in 1/255, L2 unchanged."""
    return f"{eps * 255:g}" if norm == "linf" else f"{eps:g}"


def attack_name(stem: str, strength: str, eot: int | None = None) -> str:
    """`pgd20.8` is the accuracy under an attack (here with 20 steps) at eps 8/255 (`strength`). In another
    norm or threat, the stem of the attack includes it (`pgd20.l2.0.5`). With `eot`, the name contains the
    number of samples in each pass over a randomised model (`pgd20-eot10.8`)."""
    if eot is not None:
        attack, dot, rest = stem.partition(".")
        stem = f"{attack}-eot{eot}{dot}{rest}"
    return f"{stem}.{strength}"


def corrupt_name(corruption: str, severity: int | str) -> str:
    """`corrupt.fog.3` is the accuracy under a corruption of severity 3, and `corrupt.fog.mean` is its mean
    over all severities."""
    return f"corrupt.{corruption}.{severity}"


def pr_name(noise: str, gamma: float, denominator: str = "correct") -> str:
    """`pr.uniform.0.08` is the mean share of noisy copies that are classified correctly, over the images that
    are correct without noise; `pr-all.uniform.0.08` is the mean over all images."""
    return f"pr{_OVER[denominator]}.{noise}.{gamma:g}"


def prob_acc_name(noise: str, gamma: float, rho: float, denominator: str = "correct") -> str:
    """`probacc.uniform.0.0313725.0.05` contains the radius and the tolerated failure rate; over all images,
    the name begins with `probacc-all`."""
    return f"probacc{_OVER[denominator]}.{noise}.{gamma:g}.{rho:g}"


def pfail_name(noise: str, gamma: float) -> str:
    """`pfail.uniform.0.1` is the mean probability of failure."""
    return f"pfail.{noise}.{gamma:g}"


def smoothing_name(sigma: float, radius: float) -> str:
    """`cert.smooth.0.25.0.5` is the certified accuracy of the smoothed classifier for sigma 0.25 and the L2
    radius 0.5."""
    return f"cert.smooth.{sigma:g}.{radius:g}"


def ge_name(metric: str) -> str:
    """`ge.pgd20.8` is the generalisation error of `pgd20.8`."""
    return f"ge.{metric}"


def sides_of_ge(metric: str) -> tuple[str, str]:
    """Return the metrics on train and on test whose difference is `ge.NAME`."""
    parts = parse(metric)
    name = parts._replace(prefixes=tuple(word for word in parts.prefixes if word != "ge")).build()
    return split_name(name, "train"), split_name(name, "test")


def gap_name(metric: str) -> str:
    """`test_minus_train.loss.pgd20.8` is the name of a gap that grows with overfitting; the name shows the
    direction."""
    return f"{DIFFERENCE}.{metric}"


def split_name(metric: str, split: str) -> str:
    """`train.pgd20.8` is the metric that is measured on that split; a name without a split means `test`."""
    return metric if split == "test" else f"{split}.{metric}"


def without_split(metric: str) -> str:
    """The metric's name without the split at the beginning."""
    for split in SPLITS:
        metric = metric.removeprefix(f"{split}.")
    return metric


def higher_is_better(metric: str) -> bool:
    """True if higher is better, and also if the name does not show the direction.

    The argument may be an expression such as `mean(ge.*, wci)`. Lower is better if lower is better for every
    name in the expression.
    """
    summary = re.fullmatch(_SUMMARY, metric.strip())
    if summary:
        return any(higher_is_better(part) for part in summary[1].split(","))
    parts = without_split(metric.strip()).removeprefix("arch.").split(".")
    if parts[:2] == ["bound", "robbench2"]:  # a lower bound that uses the smallest eigenvalue
        return True
    return parts[0] not in LOWER_FAMILIES and not any(re.match(_LOWER_PART, part) for part in parts)


def is_share(metric: str) -> bool:
    """True if the metric is a share of images or copies, or a difference of two shares (`ge.acc`)."""
    parts = parse(without_split(metric))
    if parts.is_ge:
        parts = parts.rest()
    return not {*parts.prefixes} - OF_OTHERS and parts.form.is_share(parts)


def of_other_network(metric: str) -> bool:
    """True if the adversarial examples were made for another network."""
    return not OF_OTHERS.isdisjoint(parse(metric).prefixes)


def is_share_of_images(metric: str) -> bool:
    """True if each image either counts or not; False for shares of copies, means and gaps."""
    parts = parse(without_split(metric))
    return is_share(metric) and not (parts.is_ge or parts.suffix) and parts.form.share == "images"


def last_evaluated(record: Mapping[str, Any]) -> str | None:
    """Return the metric of the last entry that has a value, or else the last of `metrics`."""
    metrics = record.get("metrics") or {}
    for entry in reversed(record.get("evals") or []):
        if entry.get("metric") in metrics:
            return str(entry["metric"])
    return next(reversed(metrics), None)


def default_rank_key(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the metric `score` if a record has it, else the metric that most records evaluated last (if
    several, the first). Raises RbError if no record has a metric."""
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
    """Return all metrics of the records, in the order of first occurrence."""
    seen: dict[str, None] = {}
    for record in records:
        seen.update(dict.fromkeys(record.get("metrics") or ()))
    return list(seen)

"""Robust accuracy at every eps, from one search for the nearest adversarial examples (`rb-attack curve`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rbtools.attacks import ATTACKS, lattice
from rbtools.attacks.curve import SEARCHES, CurveAttack
from rbtools.attacks.decision import AT
from rbtools.errors import RbError
from rbtools.evaluation import attacking, diagnostics
from rbtools.evaluation.accuracy import Clean, attack_name, attack_settings, share
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.spec import Entry, Evaluation, OfAttack, RowsOf, method_key, rebuilt
from rbtools.lazy import np, torch
from rbtools.records import schema
from rbtools.registry import param

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_DIGITS = 6
# Relative tolerance for 8-bit images, so that rounding does not put a distance of k/255 above eps = k/255.
_SLACK = 1e-5
_NEAREST = "nearest"  # the value of the field `search` in entries


@dataclass(frozen=True, kw_only=True)
class Nearest(OfAttack):
    """The accuracy at one distance, eps, from the distances of the nearest adversarial examples. If eps is
    None, the value is the median of these distances.

    A row (1,) is the distance of the nearest adversarial example. The distance is 0 for an example that is
    misclassified without an attack, and infinite if the attack finds no adversarial example. The accuracy at
    eps is the share of distances above eps. `farthest` is the largest eps in the area under the curve, for
    pixels in [0, 1]. With `counted`, the name contains the number of queries.
    """

    eps: float | None = param(None, "The distance, for pixels in [0, 1].", check="non-negative")
    farthest: float = field(default=0.0, compare=False)
    counted: bool = False

    def __post_init__(self) -> None:
        if self.counted and not hasattr(self.method, "queries"):
            raise RbError(
                f"--queries is a list, but {self.method.name} takes a single number. Give one number."
            )
        super().__post_init__()

    @property
    def stem(self) -> str:
        stem: str = self.method.stem
        own = self.method.name
        return f"{own}{self.method.queries}{stem.removeprefix(own)}" if self.counted else stem

    def name(self) -> str:
        if self.eps is None:
            return f"{self.stem}.distance"
        return self.stem + attack_name(self.method.at(self.eps)).removeprefix(self.method.stem)

    def column(self) -> Entry:
        key = method_key("distance", "attack", self.method)
        if self.method.in_ball:
            del key["config"]["eps"]  # the search does not depend on eps
        return key

    @classmethod
    def reading(cls, specs: Sequence[Nearest]) -> Entry:
        counted = {"counted": True} if any(spec.counted for spec in specs) else {}
        return {"eps": [spec.eps for spec in specs if spec.eps is not None], **counted}

    def settings(self) -> Entry:
        settings = attack_settings(self.method, loss=self.method.loss)
        strength = self.method.within.strength
        if self.method.name != CurveAttack.name:  # else it could be an entry of the attack itself
            settings["search"] = _NEAREST
        if not self.method.in_ball:
            settings["farthest"] = settings[strength]
        if self.eps is None:
            del settings[strength]
            return settings
        return {**settings, strength: getattr(self.method.at(self.eps), strength)}

    def for_answers(self, answers: str, *, eight_bit: bool) -> Nearest:
        return replace(self, method=attacking.able(self.method, answers, eight_bit=eight_bit)[0])

    def correct(self, rows: np.ndarray) -> np.ndarray:
        if self.eps is None:
            return np.isinf(rows[:, 0])
        if not self.method.in_ball:  # its points are float32: one at the strength itself is allowed
            return rows[:, 0] > np.float32(self.eps)
        return rows[:, 0].astype(np.float64) > self.eps

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.eps is None else self.correct(rows)

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        fields = diagnostics.of_attack(self.method, totals, len(rows))
        fields.pop("distance", None)
        if self.eps is None:
            return fields | _summary(rows[:, 0].astype(np.float64), self.farthest)
        return share(self.correct(rows)) | fields

    searches = precise = verdicts = True

    def rows(self, batch: Batch) -> Outcome:
        return self.judged(batch, attacking.run_attack(batch, self.method))

    def judged(self, batch: Batch, result: attacking.AttackResult) -> Outcome:
        points = result.images if self.method.in_ball else result.points
        rows = torch.zeros_like(batch.images[:, 0, 0, 0])
        if points is not None:
            attacked = ~points.flatten(1).isnan().any(1)
            rows[attacked] = self.method.threat.distances(points[attacked], batch.images[attacked])
        if self.method.grid != "none":
            rows = rows * (1 - _SLACK)
        return Outcome(torch.where(result.survived, torch.inf, rows)[:, None], result.totals)

    @classmethod
    def rows_together(cls, specs: Sequence[Nearest], batch: Batch) -> list[Outcome]:
        """One search also provides the rows of the same search with fewer queries."""
        found: dict[Nearest, Outcome] = {}
        for some in _by_search(specs):
            most = max(some, key=lambda spec: getattr(spec.method, "queries", 0))
            fewer = [spec for spec in some if spec is not most]
            if not fewer:
                (found[most],) = super().rows_together([most], batch)
                continue
            marked = most.method.marked(tuple(spec.method.queries for spec in fewer))
            result = attacking.run_attack(batch, marked)
            found[most] = most.judged(batch, result)
            # If all images are misclassified without an attack, there are no marks.
            found |= {spec: spec.earlier(batch, result) if result.marks else found[most] for spec in fewer}
        return [found[spec] for spec in specs]

    def earlier(self, batch: Batch, result: attacking.AttackResult) -> Outcome:
        """The rows of a search that ends after fewer queries than the one with this result. The model
        classifies its points, which are clean images if nothing was found."""
        points, queries = result.marks[f"{AT}{self.method.queries}"], self.method.queries
        attacked = ~points.flatten(1).isnan().any(1)
        images, survived = batch.images.clone(), batch.clean.clone()
        images[attacked] = lattice.project(points[attacked], batch.images[attacked], self.method)
        survived[attacked] = batch.take(attacked).correct(images[attacked])
        passes = len(images) + result.marks["asked"].nan_to_num().clamp_max(queries).sum() + attacked.sum()
        totals = {**result.totals, "forward": float(passes)}
        return self.judged(batch, result._replace(images=images, survived=survived, totals=totals))

    @classmethod
    def joined(cls, specs: Sequence[Nearest]) -> list[Nearest]:
        farthest = max((spec.eps for spec in specs if spec.eps is not None), default=0.0)
        return [replace(spec, farthest=farthest) for spec in specs]

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Nearest | None:
        name = entry.get("attack")
        if not (name == CurveAttack.name or entry.get("search") == _NEAREST) or "best" in entry:
            return None
        if not isinstance(name, str) or name in SEARCHES:
            method = rebuilt(SEARCHES, name, entry, eps=None)
        else:
            known = ATTACKS.of_name(name)
            farthest = {} if known is None else {known.within.strength: entry.get("farthest")}
            method = rebuilt(ATTACKS, name, entry, **farthest)
        if method is None:
            return None
        counted = str(entry["metric"]).startswith(f"{name}{getattr(method, 'queries', '')}.")
        counted = counted and hasattr(method, "queries")
        return cls(method=method, eps=entry.get(method.within.strength), counted=counted)


def _by_search(specs: Sequence[Nearest]) -> list[list[Nearest]]:
    """The specs in groups of attacks on labels that differ only in the number of queries."""
    groups: dict[Any, list[Nearest]] = {}
    for spec in specs:
        one: Any = spec.method
        alike = replace(one, queries=1) if hasattr(one, "marked") else one
        groups.setdefault(alike, []).append(spec)
    return list(groups.values())


def _summary(distances: np.ndarray, farthest: float) -> dict[str, Any]:
    """The median and other quantiles of the distances, and the area under the curve up to `farthest`."""
    sizes = np.quantile(distances, _QUANTILES, method="inverted_cdf")
    quantiles = {
        f"{share:g}": round(float(size), _DIGITS) if np.isfinite(size) else None
        for share, size in zip(_QUANTILES, sizes, strict=True)
    }
    area = float(np.minimum(distances, farthest).mean() / farthest) if farthest else None
    summary: dict[str, Any] = {"n": len(distances), "value": quantiles["0.5"], "quantiles": quantiles}
    if quantiles["0.5"] is None:
        summary["reason"] = "no adversarial example was reached for half of the images or more"
    return summary | {"area": area, "unreached": int(np.isinf(distances).sum())}


def optimality(
    specs: Sequence[Nearest], entries: Sequence[Entry], along: Sequence[Entry], rows: RowsOf | None
) -> list[Entry]:
    """The local optimality of several attacks (Cina et al. 2024, AttackBench, arXiv:2404.19460).

    The local optimality is 1 - (a - b) / (c - b), where the terms are areas under a curve of accuracy over
    eps, up to the largest of the smallest distances. The term a is the area for the attack, b the area for
    the smallest distance of each example, and c the area for an attack that finds nothing. An attack with a
    local optimality of 1 is as good as all attacks together.
    """
    specs = [spec for spec in specs if spec.eps is None]
    best = ",".join(spec.stem if spec.counted else spec.method.name for spec in specs)
    by_name = {entry["metric"]: entry for entry in entries}
    values: list[float | None] = [0.0] * len(specs)
    if rows is not None:
        values = local_optimality(np.concatenate([rows(spec) for spec in specs], axis=1).astype(np.float64))
    made = []
    for spec, value in zip(specs, values, strict=True):
        entry = {"metric": f"optimality.{spec.stem}", **spec.settings(), "best": best}
        of_search = by_name[spec.name()]
        own = ("reason", "passes")  # also results of one search
        shared = [name for name in of_search if schema.role(name) != "result" and name not in own]
        entry |= {name: of_search[name] for name in shared if name not in entry}
        reason = {} if value is not None else {"reason": "no image is reached by any attack"}
        made.append({**entry, "value": value, **reason})
    return made


def local_optimality(distances: np.ndarray) -> list[float | None]:
    """The local optimality of A attacks (or None), from distances (N, A) that are 0 for clean errors."""
    best = distances.min(1)
    reached = best[np.isfinite(best)]
    farthest = reached.max() if len(reached) else 0.0
    areas = np.minimum(distances, farthest).mean(0)
    least, most = np.minimum(best, farthest).mean(), (best > 0).mean() * farthest
    if most <= least:
        return [None] * distances.shape[1]
    return [float(1 - (area - least) / (most - least)) for area in areas]


def nearest(searches: Sequence[Any], eps: Sequence[float]) -> Evaluation:
    """The distances found by each search, the accuracies at eps, the local optimality of the searches if
    there are several, and clean accuracy. Names contain the number of queries if a search occurs with several
    numbers."""
    specs: list[Nearest] = []
    stems = [method.stem for method in searches]
    for method in searches:
        counted = stems.count(method.stem) > 1
        specs += [Nearest(method=method, eps=one, counted=counted) for one in (*eps, None)]
    title, several = ", ".join(dict.fromkeys(stems)), len({method.name for method in searches}) > 1
    summary = optimality if several else None
    return Evaluation(title=title, specs=tuple(Nearest.joined(specs)), along=(Clean(),), summary=summary)

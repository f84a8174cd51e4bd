"""Accuracy on unchanged, attacked and corrupted images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rbtools.attacks import ATTACKS
from rbtools.attacks.mean_over_draws import DEFAULT
from rbtools.errors import RbError
from rbtools.evaluation import attack_names, attacking, diagnostics
from rbtools.evaluation.base import Batch, Outcome, batch_size
from rbtools.evaluation.spec import Entry, Evaluation, Spec, method_key, rebuilt
from rbtools.lazy import np, torch
from rbtools.probabilistic import estimate, intervals
from rbtools.records import metric_name
from rbtools.records.name_forms import NameForm
from rbtools.records.results import is_number

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


def share(correct: np.ndarray) -> Entry:
    """The fields `value`, `n` and interval of an accuracy, from a mask (n,) of the correct images."""
    n, right = len(correct), int(correct.sum())
    return {"n": n, "value": right / n, "ci95": list(intervals.wilson(right, n))}


@dataclass(frozen=True, kw_only=True)
class Accuracy(Spec):
    """The share of images that are classified correctly after `images` has changed them.

    An element is 1 if the image is classified correctly and 0 otherwise. With `detail`, a row consists of the
    label and the logits of the image. With `draws`, for randomised models, a row is the number of correct
    passes, and the value is the mean share of correct passes.
    """

    detail: bool = False
    draws: int = 0

    @property
    def most_passes(self) -> int:
        return max(self.draws, 1)

    @property
    def verdicts(self) -> bool:
        return not (self.detail or self.draws)

    def images(self, batch: Batch) -> tuple[Tensor, Mapping[str, float]]:
        """The images (N, C, H, W) that the model classifies, and totals over the examples."""
        raise NotImplementedError

    def kept(self) -> Entry:
        """The fields of the store key that describe what a row contains."""
        detail = {"rows": "label, logits"} if self.detail else {}
        return detail | ({"mean_of_draws": self.draws} if self.draws else {})

    def about(self) -> Entry:  # the settings without `draws`
        raise NotImplementedError

    def settings(self) -> Entry:
        return self.about() | ({"verdict_draws": self.draws} if self.draws else {})

    def rows(self, batch: Batch) -> Outcome:
        images, totals = self.images(batch)
        if self.draws:
            return self.drawn(batch, images, totals)
        return Outcome(self.judged(batch, batch.logits(images)), totals)

    def by_draws(self, draws: int) -> Self | None:
        return replace(self, draws=draws)

    def judged(self, batch: Batch, logits: Tensor) -> Tensor:
        """The rows (N,) or (N, 1 + K) of a batch, from its logits (N, K)."""
        if self.detail:
            return torch.cat([batch.labels[:, None].float(), logits], dim=1)
        return logits.argmax(1).eq(batch.labels).int()

    def drawn(self, batch: Batch, images: Tensor, totals: Mapping[str, float]) -> Outcome:
        """The number of passes of the randomised model that classify each image correctly. As many passes as
        fit into a batch are computed together, but only one if each image is passed separately."""
        batch, count = replace(batch, images=images), len(batch.ids)
        alone = getattr(batch.model, "one_by_one", False)
        size = 1 if alone else batch_size(batch.ids.device, images.shape[1:])
        rows = torch.arange(count, device=batch.ids.device)
        right = torch.zeros_like(batch.labels)
        for numbers in torch.arange(self.draws, device=rows.device).split(max(size // max(count, 1), 1)):
            copies = replace(batch.take(rows.repeat(len(numbers))), draw=numbers.repeat_interleave(count))
            right += copies.correct(copies.images).view(len(numbers), count).sum(0)
        forward = totals.get("forward", 0.0) + float(self.draws * count)
        return Outcome(right.float(), {"backward": 0.0, **totals, "forward": forward})

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        if self.draws:
            shares, n = rows / self.draws, len(rows)
            # the standard error for these images, which only the random passes cause
            error = float(np.sqrt((shares * (1 - shares)).sum() / max(self.draws - 1, 1)) / n)
            mean = estimate.pr_d(rows.astype(int).tolist(), self.draws).entry()
            return {**mean, "draws_error": round(error, 6)}
        return share(self.correct(rows)) | ({"detail": diagnostics.of_rows(rows)} if self.detail else {})

    def correct(self, rows: np.ndarray) -> np.ndarray:
        # the majority of the passes decides
        return rows[:, 1:].argmax(1) == rows[:, 0] if self.detail else rows > self.draws / 2

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.draws else self.correct(rows)


def kept_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the fields of `Accuracy`, read from an entry."""
    return {"detail": "detail" in entry, "draws": entry.get("verdict_draws", 0)}


_CLEAN = {"acc": "clean", "acc-among": "acc-among"}


@dataclass(frozen=True, kw_only=True)
class Clean(Accuracy):
    """Accuracy on the unchanged images. With `among`, only the logits of these classes are compared."""

    names = (NameForm(r"(?P<stem>acc(?:-among)?)", "images", title=lambda parts: _CLEAN[parts.stem]),)

    among: tuple[int, ...] = ()
    is_clean = True

    @property
    def random(self) -> bool:
        return self.draws > 0

    def name(self) -> str:
        return "acc-among" if self.among else "acc"

    def column(self) -> Entry:
        among = {"among": list(self.among)} if self.among else {}
        return {"kind": "clean", **self.kept(), **among}

    @property
    def verdicts(self) -> bool:
        return super().verdicts and not self.among

    def about(self) -> Entry:
        return {}

    def images(self, batch: Batch) -> tuple[Tensor, Mapping[str, float]]:
        return batch.images, {}

    def rows(self, batch: Batch) -> Outcome:
        if self.draws:
            return super().rows(batch)
        logits = batch.clean_logits
        if self.among:
            others = [index for index in range(logits.shape[1]) if index not in self.among]
            logits = logits.index_fill(1, torch.tensor(others, device=logits.device), -torch.inf)
        return Outcome(self.judged(batch, logits))

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        return cls(**kept_of(entry)) if entry["metric"] == "acc" else None


def clean(detail: bool = False) -> Evaluation:
    return Evaluation(title="clean accuracy", specs=(Clean(detail=detail),))


def attack_name(method: Any, draws: int = 0) -> str:
    """The name of the accuracy under an attack. It contains the number of samples in each pass if the user
    chose a number other than the default for the model, which is randomised if `draws` is not 0."""
    samples = method.draws_each
    usual = method.eot is None or samples == (DEFAULT if draws and not method.batch_dependent else 1)
    return metric_name.attack_name(method.stem, method.threat.in_names, None if usual else samples)


def attack_settings(method: Any, **more: object) -> Entry:
    """The attack's name and configuration for an entry, with the norm and step size that are used."""
    return {"attack": method.name, **more, **method.said()}


@dataclass(frozen=True, kw_only=True)
class Attacked(Accuracy):
    """Accuracy under an attack at one eps. An example that is broken at a smaller eps, in `ladder`, also
    counts as broken at this eps."""

    names = (attack_names.ATTACKED,)

    method: Any
    ladder: tuple[float, ...] = ()
    # The attacks of an ensemble that need more than the model's answers.
    left_out: tuple[str, ...] = field(default=(), compare=False)
    under_attack = True

    @property
    def random(self) -> bool:
        return bool(self.method.random) or self.draws > 0

    @property
    def batch_dependent(self) -> bool:
        return bool(self.method.batch_dependent) and not self.draws

    @property
    def searches(self) -> bool:
        """Whether the search may use the fast model. AutoAttack's own code and randomised models do not."""
        return not (self.batch_dependent or self.draws)

    @property
    def precise(self) -> bool:
        return bool(self.method.precise)

    @property
    def most_passes(self) -> int:
        return super().most_passes + int(self.method.most_passes)

    @property
    def in_float32(self) -> Sequence[str]:
        return sorted({part.name for part in self.method.parts if part.precise})

    @property
    def needs(self) -> tuple[Spec, ...]:
        if not self.ladder:
            return ()
        return (replace(self, method=self.method.at(self.ladder[-1]), ladder=self.ladder[:-1]),)

    def name(self) -> str:
        return attack_name(self.method, self.draws)

    def by_draws(self, draws: int) -> Self | None:
        """The mean over passes, with an attack that averages over samples. By default, their number is
        `mean_over_draws.DEFAULT`."""
        if draws and not self.method.over_draws:
            raise RbError(
                f"The model is randomised, but the attack {self.method.name} cannot average gradients over"
                " random draws. Use another attack, or give --draws 1, which treats the model as"
                " deterministic."
            )
        several = self.method.draws_each > 1 or self.method.eot is not None or self.method.batch_dependent
        method = self.method if several or not draws else replace(self.method, eot=DEFAULT)
        return replace(self, method=method, draws=draws)

    def for_answers(self, answers: str, *, eight_bit: bool) -> Self:
        method, out = attacking.able(self.method, answers, eight_bit=eight_bit)
        return replace(self, method=method, left_out=out)

    @classmethod
    def reading(cls, specs: Sequence[Self]) -> Entry:
        out = [list(spec.left_out) for spec in specs]
        return {"left_out": out} if any(out) else {}

    def without_grid(self) -> Self | None:
        real = self.method.grid == "none"
        return None if real else replace(self, method=replace(self.method, grid="none"))

    def column(self) -> Entry:
        return {**method_key("attack", "attack", self.method), **self._ladder(), **self.kept()}

    def _ladder(self) -> Entry:
        return {"ladder": list(self.ladder)} if self.ladder else {}

    def about(self) -> Entry:
        mean = {"eot_mean": self.method.mean_of} if self.method.draws_each > 1 else {}
        return {**attack_settings(self.method, loss=self.method.loss), **self._ladder(), **mean}

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        out = {"left_out": list(self.left_out)} if self.left_out else {}
        return super().findings(rows, totals) | diagnostics.of_attack(self.method, totals, len(rows)) | out

    def images(self, batch: Batch) -> tuple[Tensor, Mapping[str, float]]:
        found = attacking.run_attack(replace(batch, fast_model=batch.model), self.method, everyone=True)
        return found.images, found.totals

    @classmethod
    def rows_together(cls, specs: Sequence[Self], batch: Batch) -> list[Outcome]:
        """Measure smaller eps first. With a ladder, examples that are broken there are not attacked again."""
        found: dict[Spec, Outcome] = {}
        results: dict[Spec, attacking.AttackResult] = {}
        for spec in sorted(specs, key=lambda spec: float(spec.method.strength)):
            if spec.draws:
                found[spec] = spec.rows(batch)
                continue
            previous = still_correct = None
            for smaller in spec.needs:
                if smaller in results:
                    previous = results[smaller]
                    still_correct = previous.survived
                else:  # its rows are stored
                    rows = batch.precomputed[smaller]
                    still_correct = rows[:, 1:].argmax(1) == rows[:, 0] if spec.detail else rows.bool()
            result = results[spec] = attacking.run_attack(batch, spec.method, previous, still_correct)
            values = spec.judged(batch, result.logits) if spec.detail else result.survived.int()
            found[spec] = Outcome(values, result.totals, result.images, result.points)
        return [found[spec] for spec in specs]

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        if "attack" not in entry or metric_name.of_other_network(entry["metric"]):
            return None
        method = rebuilt(ATTACKS, entry.get("attack"), entry)
        ladder = entry.get("ladder", [])
        if method is None or not isinstance(ladder, list) or not all(map(is_number, ladder)):
            return None
        return cls(method=method, ladder=tuple(ladder), **kept_of(entry))


def attacked(
    method: Any,
    eps: tuple[float, ...],
    ladder: bool = False,
    detail: bool = False,
    save: str | None = None,
    png: bool = False,
) -> Evaluation:
    """Accuracy under one attack at any number of eps, and clean accuracy.

    With `ladder`, smaller eps are measured first, and the examples that they break are not attacked at larger
    eps. With `detail`, the logits of each example are kept. `save` and `png` are described in `Evaluation`.
    """

    def spec(e: float) -> Attacked:
        smaller = tuple(other for other in sorted(eps) if other < e) if ladder else ()
        return Attacked(method=method.at(e), ladder=smaller, detail=detail)

    specs, along = tuple(map(spec, eps)), (Clean(detail=detail),)
    return Evaluation(title=str(method.stem), specs=specs, along=along, save=save, png=png)

"""Robust losses, which are the cross-entropy and error of every example at the last iterate of an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools.attacks import ATTACKS
from rbtools.errors import UsageError
from rbtools.evaluation import attacking
from rbtools.evaluation.accuracy import Clean, attack_name, attack_settings, share
from rbtools.evaluation.base import Batch, Outcome
from rbtools.evaluation.spec import Entry, Evaluation, OfAttack, method_key, rebuilt
from rbtools.lazy import np, torch
from rbtools.probabilistic import intervals


@dataclass(frozen=True, kw_only=True)
class RobustLoss(OfAttack):
    """The mean cross-entropy (`what` is "loss") or the share of misclassified images ("error") at the last
    iterate of an attack on every image. A row is the cross-entropy, and 1 if the last iterate is correct."""

    what: str
    searches = True

    def name(self) -> str:
        return f"{self.what}.{attack_name(self.method)}"

    def column(self) -> Entry:
        return method_key("robust loss", "attack", self.method)

    @classmethod
    def reading(cls, specs: Sequence[RobustLoss]) -> Entry:
        return {"intervals": intervals.OF_IMAGES_VERSION}

    def settings(self) -> Entry:
        return {**attack_settings(self.method), "attacked": "all"}

    def correct(self, rows: np.ndarray) -> np.ndarray:
        return rows[:, 1] > 0

    def counts(self, rows: np.ndarray) -> np.ndarray | None:
        return None

    def findings(self, rows: np.ndarray, totals: Mapping[str, float]) -> Entry:
        n = len(rows)
        if self.what == "error":
            return share(~self.correct(rows))
        losses = rows[:, 0].astype(float)
        loss: Entry = {"n": n, "value": float(losses.mean())}
        if n > 1:
            loss["ci95"] = list(intervals.of_images(losses, 0.0))
            loss["interval_of"] = intervals.OF_IMAGES
        return loss

    def rows(self, batch: Batch) -> Outcome:
        found = attacking.run_attack(batch, self.method, everyone=True)
        loss = torch.nn.functional.cross_entropy(found.logits, batch.labels, reduction="none")
        rows = torch.stack([loss, (found.logits.argmax(1) == batch.labels).float()], dim=1)
        return Outcome(rows, {name: found.totals[name] for name in ("forward", "backward")})

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> RobustLoss | None:
        what = str(entry["metric"]).partition(".")[0]
        if what not in PARTS or entry.get("attacked") != "all":
            return None
        method = rebuilt(ATTACKS, entry.get("attack"), entry)
        return None if method is None else cls(method=method, what=what)


PARTS = ("loss", "error")


def robust_loss(method: Any, eps: Sequence[float]) -> Evaluation:
    """Loss and error under one attack at any number of distances, and clean accuracy.

    Every image is attacked, even if it is already misclassified, because a mean that includes unattacked
    images would not be the robust loss. Only the last iterate counts. Raises UsageError if the attack skips
    images or stops early.
    """
    goes_on = method.iterate == "last" or not method.random
    if not goes_on or method.batch_dependent or method.clean_pass:
        raise UsageError(
            f"The attack {method.stem} stops at examples that are broken or misclassified, so their"
            " loss is not maximised. Use fgsm, or pgd or cw with --iterate last"
            " (and no --target)."
        )
    specs = [RobustLoss(method=method.at(one), what=what) for one in eps for what in PARTS]
    return Evaluation(title=f"loss under {method.stem}", specs=tuple(specs), along=(Clean(),))

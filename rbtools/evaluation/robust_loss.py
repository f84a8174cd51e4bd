"""Task of robust losses: cross-entropy and error of every example at the last point of an attack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rbtools.attacks import lattice
from rbtools.errors import UsageError
from rbtools.evaluation.base import Batch, EvalTask, Outcome, Output, method_key
from rbtools.evaluation.tasks import CleanOutput, attack_settings
from rbtools.lazy import np, torch
from rbtools.probabilistic import intervals
from rbtools.records import metric_name

# The gaps of these metrics are test - train: loss and error on test images grow with overfitting.
GAPS = frozenset({"loss", "error"})


@dataclass(frozen=True)
class LossOutput(Output):
    """A row for each example: the cross-entropy at the last iterate, and 1 if the model is correct there."""

    method: Any
    allow_fast_model = True

    @property
    def random(self) -> bool:
        return bool(self.method.random)

    def key_fields(self) -> dict[str, Any]:
        return method_key("robust loss", "attack", self.method)

    def postprocess_key(self) -> dict[str, Any]:
        return {"intervals": intervals.OF_IMAGES_VERSION}

    def measure(self, batch: Batch) -> Outcome:
        from rbtools.evaluation.fast_model import CountingModel

        counting = CountingModel(batch.fast_model, batch.chunk_size)
        counting.begin(len(batch.ids))
        draws = batch.draws(f"attack.{self.method.name}")
        perturbed, _ = lattice.run(self.method, counting, batch.images, batch.labels, draws)
        perturbed = lattice.project(perturbed, batch.images, self.method)
        logits = batch.logits(perturbed)
        loss = torch.nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        rows = torch.stack([loss, (logits.argmax(1) == batch.labels).float()], dim=1)
        passes = {"forward": float(counting.forwards + len(rows)), "backward": float(counting.backwards)}
        return Outcome(rows, passes)

    def entry_template(self) -> list[dict[str, Any]]:
        name = metric_name.attack_name(self.method.stem, self.method.eps, self.method.norm)
        settings = {**attack_settings(self.method), "attacked": "all"}
        return [{"metric": f"{what}.{name}", **settings} for what in ("loss", "error")]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        n, wrong = len(outcomes), int((outcomes[:, 1] == 0).sum())
        losses = outcomes[:, 0].astype(float)
        mean = float(losses.mean())
        loss: dict[str, Any] = {"n": n, "value": mean}
        if n > 1:
            loss["ci95"] = list(intervals.of_images(losses, 0.0))
            loss["interval_of"] = intervals.OF_IMAGES
        error = {"n": n, "value": wrong / n, "ci95": list(intervals.wilson(wrong, n))}
        return [entry | numbers for entry, numbers in zip(self.entry_template(), (loss, error), strict=True)]


@dataclass(frozen=True)
class RobustLossTask(EvalTask):
    """Loss and error under one attack, for any number of distances.

    Every example is attacked, also a misclassified one, and only the last iterate counts: with unattacked
    examples the mean would not be the robust loss. Raises UsageError for an attack that skips examples or
    stops early.
    """

    method: Any
    eps: tuple[float, ...]
    gaps = GAPS

    def __post_init__(self) -> None:
        goes_on = self.method.iterate == "last" or not self.method.random
        if not goes_on or self.method.batch_dependent or self.method.clean_pass:
            raise UsageError(
                f"The attack {self.method.stem} stops at examples that are broken or misclassified, so their"
                " loss is not maximised. Use fgsm, or pgd or cw with --iterate last"
                " (and no --target)."
            )

    @property
    def title(self) -> str:
        return f"loss under {self.method.stem}"

    def outputs(self) -> Sequence[Output]:
        return [CleanOutput(), *(LossOutput(replace(self.method, eps=eps)) for eps in self.eps)]

"""Transfer attacks: adversarial examples of one model, evaluated on another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from rbtools.errors import RbError
from rbtools.evaluation import tasks
from rbtools.evaluation.base import EvalTask, Outcome, Output
from rbtools.evaluation.tasks import AttackOutput, CleanOutput
from rbtools.execution.run import Run
from rbtools.inputs import resolve
from rbtools.inputs.data import data_of

if TYPE_CHECKING:
    from torch import Tensor, device, nn

    from rbtools.evaluation.base import Batch


DESCRIBES = ("arch", "dataset", "checkpoint_file")  # what it takes beside the checkpoint to load a model


@dataclass(frozen=True)
class TransferOutput(AttackOutput):
    """Which examples stay correctly classified when the attack runs on another checkpoint's model."""

    source: str = ""
    source_model: Mapping[str, Any] = field(default_factory=dict)

    @property
    def allow_fast_model(self) -> bool:
        """The attack runs on the source in float32; the fast model would have nothing to do."""
        return False

    @property
    def metric(self) -> str:
        return f"transfer.{super().metric}"

    def key_fields(self) -> dict[str, Any]:
        return {**super().key_fields(), "source": self.source}

    def entry_template(self) -> list[dict[str, Any]]:
        about = {"source": self.source, "source_model": dict(self.source_model)}
        return [{**entry, **about} for entry in super().entry_template()]


@dataclass(frozen=True)
class TransferTask(EvalTask):
    """Accuracy on the adversarial examples of a source: another record's model.

    source: the record, as JSON. Every example that the evaluated model classifies correctly is attacked on
    the source, at each eps.
    """

    method: Any
    eps: tuple[float, ...]
    source: str
    context: Run

    @property
    def title(self) -> str:
        return f"transfer of {self.method.stem}"

    def outputs(self) -> Sequence[Output]:
        record = orjson.loads(self.source)
        name = resolve.checkpoint_name(record, self.context)
        model = {key: record[key] for key in DESCRIBES if key in record}
        attacked = [
            TransferOutput(replace(self.method, eps=eps), source=name, source_model=model) for eps in self.eps
        ]
        return [CleanOutput(), *attacked]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> Sequence[Tensor | Outcome]:
        outcomes: list[Any] = []
        for output in wanted:
            if isinstance(output, TransferOutput):
                source = _loaded(self.source, self.context, batch.images.device)
                result = tasks.run_attack(batch, output.method, on=source)
                outcomes.append(Outcome(result.survived, result.totals))
            else:
                outcomes.append(batch.clean)
        return outcomes


# The last source model and its key: the model is loaded once for all records and batches.
_last: list[tuple[Any, nn.Module]] = []


def _loaded(source: str, run: Run, where: device) -> nn.Module:
    """The source's model in eval mode, its parameters frozen."""
    key = (
        source,
        run.selection.dataset,
        run.selection.split,
        run.selection.data_dir,
        run.selection.class_map,
        run.store.folder,
        where,
    )
    if not _last or _last[0][0] != key:
        record = orjson.loads(source)
        try:
            model = resolve.load_model(record, data_of(record, run), run, where)
        except RbError as wrong:
            raise RbError(f"The model of --from cannot be attacked. {wrong}") from None
        _last[:] = [(key, model)]
    return _last[0][1]

"""Attacks on a defended network: through its stages, and on the network without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.evaluation.base import Batch, Outcome, Output
from rbtools.evaluation.by_draws import IMAGES
from rbtools.evaluation.tasks import AttackOutput, AttackTask, attempted, run_attack

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.execution.run import Run


@dataclass(frozen=True)
class ObliviousOutput(AttackOutput):
    """Which examples stay correctly classified when the attack runs on the network without its stages."""

    source: ClassVar[str] = "bare"

    @property
    def allow_fast_model(self) -> bool:
        """The attack runs on the bare network in float32."""
        return False

    @property
    def metric(self) -> str:
        return f"oblivious.{super().metric}"

    def key_fields(self) -> dict[str, Any]:
        return {**super().key_fields(), "source": self.source}

    def measure(self, batch: Batch) -> Outcome:
        from rbtools.defences.defended import bare

        result = run_attack(batch, self.method, on=bare(batch.model))
        return Outcome(result.survived.int(), result.totals)

    def judged_images(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        from rbtools.defences.defended import bare
        from rbtools.evaluation.randomised import controlled, randomness_of

        network = bare(batch.model)
        network = controlled(network, randomness_of(network, batch.images[:IMAGES]))
        return attempted(batch, self.method, network)


@dataclass(frozen=True)
class DefendedAttackTask(AttackTask):
    """Accuracy under one attack, which runs through the stages, and on the bare network (`oblivious`).

    plain: the attack on the bare network, where it is not the same (stages that are random).
    """

    plain: Any = None

    def outputs(self) -> Sequence[Output]:
        clean, *adaptive = super().outputs()
        plain = self.plain or self.method
        oblivious = [ObliviousOutput(replace(plain, eps=eps)) for eps in self.eps]
        return [clean, *oblivious, *adaptive]

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor | Outcome]:
        adaptive = [output for output in wanted if not isinstance(output, ObliviousOutput)]
        outcomes: dict[Any, Any] = dict(zip(adaptive, super().run(batch, adaptive), strict=True))
        return [outcomes[one] if one in outcomes else one.measure(batch) for one in wanted]


def attack_task(run: Run, method: Any, eps: tuple[float, ...], **more: Any) -> AttackTask:
    """The task of an attack: with stages of both kinds, unless the run names or saves one result."""
    both = run.selection.defend is not None and run.name_as is None and more.get("save") is None
    return (DefendedAttackTask if both else AttackTask)(method, eps, **more)

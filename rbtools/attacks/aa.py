"""AutoAttack runs several attacks in sequence, each on the examples that earlier attacks did not break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.attacks import ATTACKS, pyauto
from rbtools.attacks.base import ReferenceBackend, SequentialAttack, backend_param, norm_param
from rbtools.attacks.targets import Towards
from rbtools.errors import RbError, near
from rbtools.lazy import torch
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_examples import AttackBatch, Stage
    from rbtools.attacks.base import Attack
    from rbtools.attacks.oracle import Oracle
    from rbtools.attacks.pyauto import TameModel

VARIANTS: dict[str, tuple[tuple[str, dict[str, int]], ...]] = {
    "standard": (("apgd-ce", {}), ("apgd-t", {}), ("fab-t", {}), ("square", {})),
    "plus": (
        ("apgd-ce", {"restarts": 5}),
        ("apgd-dlr", {"restarts": 5}),
        ("fab", {"restarts": 5}),
        ("square", {}),
        ("apgd-t", {}),
        ("fab-t", {"restarts": 5}),
    ),
    "rand": (("apgd-ce", {"eot": 20}), ("apgd-dlr", {"eot": 20})),
}
"""The attacks of each variant, with the parameters that differ from the defaults."""

_STANDARD_L1 = {"apgd-ce": {"restarts": 5}, "apgd-t": {"targets": 5}}
"""The parameters of the standard variant in L1 (Croce and Hein 2021, arXiv:2103.01208; AutoAttack's code)."""

_THEIRS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
_NOT_IN_TURN = ("aa", "cw-l2", "fmn", "ddn")


@dataclass(frozen=True, kw_only=True)
class AutoAttack(ReferenceBackend):
    """AutoAttack (Croce and Hein 2020, arXiv:2003.01690).

    The variant `standard` runs APGD-CE, targeted APGD, targeted FAB and Square. In L1 (arXiv:2103.01208),
    APGD-CE has five restarts and targeted APGD has five targets. The variant `plus` follows AutoAttack's
    code: APGD-CE, APGD-DLR and FAB with five restarts each, Square, targeted APGD, and targeted FAB with five
    restarts. The variant `rand` is for randomised models and runs APGD-CE and APGD-DLR with gradients
    averaged over 20 samples of the model. The option --attacks runs other attacks with their default options.
    The metric is then named after these attacks (ensemble-fgsm-square.8), unless they are the attacks of the
    standard variant. Each attack runs on the examples that the earlier attacks did not break, and an example
    is dropped as soon as it is broken. Unbroken examples are returned unchanged.

    DLR requires three classes and targeted DLR requires four. If a model has too few classes for one of these
    losses, this loss is replaced by the margin.

    Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). Raises RbError if
    an attack is unknown or does not support the norm, or if the code of backend pyautoattack fails.
    """

    name: ClassVar[str] = "aa"
    version: ClassVar[int] = 2
    words: ClassVar[str] = "AutoAttack"
    random: ClassVar[bool] = True

    eps: float = 8 / 255
    norm: str = norm_param("l1")
    variant: str = param("standard", "The set of attacks to run.", choices=tuple(VARIANTS))
    attacks: str = param(
        "", "Comma-separated attacks to run instead of those of --variant, such as apgd-ce,square."
    )
    backend: str = backend_param()

    def __post_init__(self) -> None:
        known = _THEIRS if self.backend == "pyautoattack" else [a for a in ATTACKS if a not in _NOT_IN_TURN]
        for name in self.named:
            if name not in known:
                raise RbError(
                    f"attacks of attack 'aa' contains '{name}'.{near(name, known)} Attacks with backend"
                    f" {self.backend}: {', '.join(known)}."
                )
        named = dict.fromkeys(self.named)
        standard = _standard(self.norm)
        if named and not any(settings for _, settings in standard) and named.keys() == {*dict(standard)}:
            object.__setattr__(self, "variant", "standard")
            named = {}
        object.__setattr__(self, "attacks", ",".join(named))
        self.parts  # noqa: B018  # raises now for an attack that does not support the norm

    @property
    def stem(self) -> str:
        """The name `aa`, or a name such as `ensemble-fgsm-square` that lists other attacks alphabetically."""
        if not self.attacks:
            return super().stem
        return f"ensemble-{'-'.join(sorted(self.named))}{self.threat_suffix}"

    @property
    def draws_each(self) -> int:
        return self.eot or max(part.draws_each for part in self.parts)

    @property
    def mean_of(self) -> str:  # type: ignore[override]
        return ", ".join(dict.fromkeys(part.mean_of for part in self.parts))

    @property
    def most_passes(self) -> int:
        return (self.eot or 1) * sum(part.most_passes for part in self.parts)

    @property
    def precise(self) -> bool:  # type: ignore[override]
        return all(part.precise for part in self.parts)

    @property
    def named(self) -> list[str]:
        return [name.strip() for name in self.attacks.split(",") if name.strip()]

    @property
    def plan(self) -> list[tuple[str, dict[str, int]]]:
        """The names of the attacks to run, each with the parameters that differ from the defaults."""
        if self.named:
            return [(name, {}) for name in self.named]
        return _standard(self.norm) if self.variant == "standard" else list(VARIANTS[self.variant])

    @property
    def parts(self) -> list[SequentialAttack]:
        return [self._part(name, settings) for name, settings in self.plan]

    def able(self, answers: str) -> Attack | None:
        """The attacks that can run, as an ensemble with its own name, or the only one that can."""
        parts = [part for part in self.parts if part.able(answers) is not None]
        if len(parts) == len(self.parts) or not parts:
            return self if parts else None
        names = ",".join(part.name for part in parts)
        return parts[0] if len(parts) == 1 else replace(self, attacks=names, variant="standard")

    def _part(self, name: str, settings: dict[str, Any]) -> Any:
        norm = {} if ATTACKS.build(name, **settings).norm == self.norm else {"norm": self.norm}
        return ATTACKS.build(name, eps=self.eps, **norm, **settings)

    @property
    def loss(self) -> str:  # type: ignore[override]
        return self.loss_for(1 << 30)

    def loss_for(self, classes: int) -> str:
        return ",".join(part.loss_for(classes) for part in self.parts)

    def stages(self, classes: int) -> list[Stage]:
        return [_PartRun(part, run) for part in self.parts for run in part.stages(classes)]

    def stage_names(self, classes: int) -> list[str]:
        return [part.name for part in self.parts for _ in part.stages(classes)]

    def findings(self, by: Tensor, classes: int) -> dict[str, Tensor]:
        """Returns `broken_by`: the index in `parts` of the attack that broke an example, -1 if no attack did,
        and -2 if the unchanged image is misclassified."""
        numbers = [number for number, part in enumerate(self.parts) for _ in part.stages(classes)]
        attacks = torch.tensor(numbers, device=by.device)[by.clamp_min(0)]
        return {"broken_by": torch.where(by < 0, by, attacks)}

    def reference(self, tame: TameModel, images: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        from pyautoattack import AutoAttack as Theirs

        chosen = {"attacks": self.named, "version": "custom"} if self.named else {"version": self.variant}
        reference = Theirs(
            tame, norm=pyauto.NORMS[self.norm], eps=self.eps, seed=seed, device=images.device, **chosen
        )
        reference.verbose = False
        reference.logger = reference.apgd.logger = reference.apgd_targeted.logger = pyauto.logger
        pyauto.mend_ties(reference.square)
        if self.named:  # otherwise the five restarts of AutoAttack's constructors would remain
            reference.apgd.n_restarts = reference.apgd_targeted.n_restarts = reference.fab.n_restarts = 1
        # AutoAttack's code always uses 9 targets, and fails if the model has fewer wrong classes.
        plan = dict(self.plan)
        for name, theirs in (("apgd-t", reference.apgd_targeted), ("fab-t", reference.fab)):
            theirs.n_target_classes = min(plan.get(name, {}).get("targets", 9), tame.classes - 1)
        # AutoAttack's code runs the larger balls of L1 only in the standard variant.
        reference.apgd.use_largereps = reference.apgd_targeted.use_largereps = self.norm == "l1"

        if self.eot:
            reference.apgd.eot_iter = reference.apgd_targeted.eot_iter = self.eot

        def perturb(images: Tensor, labels: Tensor) -> Tensor:
            perturbed: Tensor = reference.run_standard_evaluation(images, labels, batch_size=len(images))[0]
            return perturbed

        return perturb


def _standard(norm: str) -> list[tuple[str, dict[str, int]]]:
    more = _STANDARD_L1 if norm == "l1" else {}
    return [(name, more.get(name, settings)) for name, settings in VARIANTS["standard"]]


@dataclass(frozen=True)
class _PartRun:
    """A stage that uses the precision and the random numbers of its attack. Only images that the stage breaks
    are changed."""

    part: SequentialAttack
    run: Stage

    def __call__(self, model: Oracle, batch: AttackBatch, more: bool) -> tuple[Tensor, Tensor]:
        if self.part.precise:
            model, batch = (batch.decides or model).exact(), replace(batch, decides=None)
        points, broken = self.run(model, replace(batch, draws=batch.draws.child(self.part.name)), True)
        unchanged = batch.images.clone()
        unchanged[broken] = points[broken]
        return unchanged, broken

    def joined(self, others: Sequence[Any]) -> tuple[Stage, int]:
        """The same as `Towards.joined`, for runs of the same attack."""
        if not isinstance(self.run, Towards):
            return self, 0
        run, count = self.run.joined([other.run for other in others])
        return _PartRun(self.part, run), count

"""Base classes of all attacks, and of attacks that run in stages on the examples that are not broken yet.

This module does not import torch, because `--help` loads the attack classes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from rbtools import check_input
from rbtools.attacks import lattice
from rbtools.attacks.mean_over_draws import eot_param
from rbtools.check_field import kind_of
from rbtools.errors import RbError
from rbtools.lazy import torch
from rbtools.registry import Registered, config, param, rare_param
from rbtools.threats.ball import ORDER, AnyDistance, Ball
from rbtools.threats.base import Threat

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.attacks.active_examples import Stage
    from rbtools.attacks.oracle import Oracle
    from rbtools.attacks.pyauto import TameModel
    from rbtools.rng.draws import Draws

# A loss that needs more classes than the model has is replaced by its numerator, the margin, which increases
# in the same direction but is not scaled by other logits.
_NEEDS = {"dlr": (3, "margin"), "targeted-dlr": (4, "targeted-margin")}


def norm_param(*more: str) -> Any:
    told = "; sphere is L2 on the points with the same norm as the image, and eps is a share of this norm"
    text = f"The norm that bounds the perturbation{told if 'sphere' in more else ''}."
    return param("linf", text, choices=("linf", "l2", *more))


def step_size_param(default: str) -> Any:
    """The field of the step size. `default` is the default value in words, for --help."""
    return rare_param(
        None,
        f"Step size in the unit of --eps, or as a multiple of eps: 0.25*eps.  [default: {default}]",
        unit="eps",
        check="non-negative",
    )


def relative_step_param() -> Any:
    return rare_param(None, "Step size as a fraction of eps.", check="non-negative")


def backend_param() -> Any:
    return param(
        "rbtools",
        "The implementation to run: this package's, or AutoAttack's own code (pyautoattack).",
        choices=("rbtools", "pyautoattack"),
    )


@dataclass(frozen=True, kw_only=True)
class AttackSearch:
    """The options of every attack. The oracle applies them, so an attack does not know the grid of the images
    or the samples of a randomised model."""

    grid: str = lattice.grid_param()
    eot: int | None = eot_param()


class Attack(AttackSearch, Registered):
    """Base class of all registered attacks, which are frozen, keyword-only dataclasses with `__call__`.

    `eps` is the radius of the ball in `norm` ("linf", "l2" or "l1"), in pixel units of [0, 1]. An attack
    within another threat (`within`) has the fields of this threat instead. With `grid` "8bit", callers use
    `lattice.run` instead of `run` and `lattice.project` for the projection.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # The name of the loss that is maximised; None if there is none.
    loss: ClassVar[str | None] = None
    # Which iterate of a run is evaluated: "any" of them, or the "last".
    iterate: str = "any"
    # Whether the attack searches for the nearest point that the model misclassifies, at any distance.
    minimal: ClassVar[bool] = False
    # The options with which a curve runs an attack of another threat, so that it finds the nearest points.
    for_nearest: ClassVar[Mapping[str, Any]] = {}
    # Settings that may follow from other settings; an entry contains the values in use.
    derived: ClassVar[frozenset[str]] = frozenset({"step_size"})
    # Whether the attack needs gradients of the model, or only its outputs.
    uses_gradients: ClassVar[bool] = True
    # Whether the attack needs logits, or only the predicted classes.
    uses_logits: ClassVar[bool] = True
    # Whether the search computes in float32: it stays near the decision boundary, where a fast copy with
    # rounding errors decides by chance.
    precise: ClassVar[bool] = False
    # The quantity that is averaged over several samples of a randomised model.
    mean_of: ClassVar[str] = "logits"
    # The threat in which the attack searches: the attack has its fields.
    within: ClassVar[type[Threat]] = Ball
    # The name of the attack in headings; the default is its name in capitals.
    words: ClassVar[str] = ""
    # The norm that the name of the attack implies, which names of metrics therefore omit.
    implied: ClassVar[str] = ""
    eps: float
    norm: str = "linf"

    @property
    def threat(self) -> Threat:
        """The threat, which limits what the attack may do to an image. Raises RbError for an unknown norm."""
        if self.in_ball and self.eps is None:
            return AnyDistance(norm=self.norm)
        names = [one.name for one in dataclasses.fields(self.within)]  # type: ignore[arg-type]
        return self.within(**{name: getattr(self, name) for name in names})

    @property
    def over_draws(self) -> bool:
        """Whether the search can follow means over samples of a randomised model."""
        return self.in_ball and self.uses_logits

    @property
    def in_ball(self) -> bool:
        """Whether the points of the attack are images in a ball."""
        return self.within is Ball

    @property
    def strength(self) -> float:
        """The radius of a ball (eps), or the setting of another threat that varies in lists and curves."""
        return float(getattr(self, self.within.strength))

    def at(self, strength: float) -> Self:
        """The same attack with this strength."""
        field = next(one for one in dataclasses.fields(self) if one.name == self.within.strength)
        value: Any = int(strength) if kind_of(field) == "int" and strength == int(strength) else strength
        changed: dict[str, Any] = {field.name: value}
        return replace(self, **changed)

    @property
    def stem(self) -> str:
        """The metric's name without the distance ("pgd20.l2")."""
        return self.name + self.threat_suffix

    @property
    def threat_suffix(self) -> str:
        """The word for the threat in the metric's name, which is empty for L-infinity."""
        word = self.norm if self.in_ball else self.within.name
        return "" if word in ("linf", self.implied, self.name) else f".{word}"

    @property
    def random(self) -> bool:
        """True if the result depends on random numbers."""
        return True

    @property
    def batch_dependent(self) -> bool:
        """True if the random numbers depend on the batch and not only on the example. The batch size of such
        an attack does not depend on the available memory."""
        return False

    @property
    def clean_pass(self) -> bool:
        """True if the unchanged images are classified first, and misclassified images are not attacked."""
        return True

    @property
    def single_step(self) -> bool:
        """True if the attack makes a single gradient step and does not use the model afterwards."""
        return False

    @property
    def draws_each(self) -> int:
        """For a randomised model, each gradient or score is the mean over this number of samples."""
        return self.eot or 1

    @property
    def most_passes(self) -> int:
        """The largest number of forward and backward passes for an image, which is used to estimate times."""
        runs = max(getattr(self, "restarts", 1), 1) * getattr(self, "targets", 1)
        return self.draws_each * runs * 2 * getattr(self, "steps", 1)

    @property
    def parts(self) -> Sequence[Attack]:
        """The attacks in an ensemble, indexed by the numbers in `broken_by`. Other attacks have no parts."""
        return ()

    @property
    def needs(self) -> str:
        """What the attack needs from the model: "gradients", "logits" or "labels"."""
        return "gradients" if self.uses_gradients else "logits" if self.uses_logits else "labels"

    def able(self, answers: str) -> Attack | None:
        """The attack, or the part of it that can run, for a model that returns "logits", "labels" or "logits
        with gradients"."""
        return self if self.needs == "labels" or self.needs in answers else None

    @property
    def effective_step_size(self) -> float:
        """The length of the first step of an attack with an option `step_size`, in pixel units of [0, 1]."""
        return float(getattr(self, "step_size"))  # noqa: B009  # other attacks have none

    def shortened(self, steps: int) -> Self:
        """The attack with this number of steps, for adversarial training. Raises RbError if it has none."""
        if not any(one.name == "steps" for one in dataclasses.fields(self)):
            raise RbError(f"The attack {self.name} has no steps, so it cannot be used for training.")
        changed: dict[str, Any] = {"steps": steps}
        return replace(self, **changed)

    def said(self) -> dict[str, Any]:
        """The attack's settings in an entry: the configuration with the norm and step size that are used."""
        settings = config(self)
        settings.setdefault(*(("norm", self.norm) if self.in_ball else ("threat", self.within.name)))
        if "step_size" in settings:
            settings["step_size"] = lattice.searched(self).effective_step_size
        return settings

    def loss_for(self, classes: int) -> str | None:
        """The loss to use for a model with this number of classes."""
        return self.loss

    def check_step_size(self) -> None:
        """Raise RbError if both step_size and relative_step are given."""
        if getattr(self, "step_size", None) is not None and getattr(self, "relative_step", None) is not None:
            raise RbError(
                f"Attack '{self.name}' has both step_size and relative_step. Give only one of them: the"
                " length of a step, or its share of eps."
            )

    def check_distance(self) -> None:
        """Raise RbError for an unknown norm, for `eot` if the attack cannot average over draws, and for a
        ball in which the clean image is the only image of the grid."""
        if self.eot is not None and not self.over_draws:
            raise RbError(
                f"The attack {self.name} cannot average gradients over random draws. Leave out eot."
            )
        if not self.in_ball:
            self._check_threat()
            return
        if self.norm not in (*ORDER, "any", "sphere"):
            raise RbError(
                f"The attack {self.name} has the norm {self.norm!r}, in which images cannot be checked."
                " Expected linf, l2 or l1, or any for an attack whose images are not in a ball."
            )
        if self.norm == "sphere" and self.eps > 2:
            raise RbError(
                f"eps is {self.eps:g} on the sphere. Expected a share of the image's norm, from 0 to 2,"
                " such as --eps 0.1 (in Python, eps=0.1)."
            )
        lattice.check_distance(self)

    def _check_threat(self) -> None:
        """Raise RbError if the class of the attack or of its threat is incomplete."""
        own = {one.name: one for one in dataclasses.fields(self)}
        needed = [one.name for one in dataclasses.fields(self.within)]  # type: ignore[arg-type]
        if missing := [name for name in (*needed, self.within.strength) if name not in own]:
            raise RbError(
                f"The threat {self.within.name} of the attack {self.name} uses '{missing[0]}', a field which"
                " the attack does not have. Define this field in both classes."
            )
        undone = ("project", "contains", *(("distances",) if self.minimal else ()))
        for name in undone:
            if getattr(self.within, name) is getattr(Threat, name):
                raise RbError(f"The threat {self.within.name} has no method {name}. Define this method.")
        for one in dataclasses.fields(AttackSearch):
            if own[one.name].metadata != one.metadata:
                raise RbError(
                    f"The attack {self.name} has a field '{one.name}', which is already an option of every"
                    " attack. Rename the field."
                )

    def __call__(self, model: Oracle, images: Tensor, labels: Tensor, draws: Draws) -> Tensor:
        """Perturb `images`.

        Shape: images and result are float32 (N, C, H, W) in [0, 1], and labels are int64 (N,). For a threat
        other than a ball, the result consists of the points (N, ...) of the threat. `model` maps images to
        logits (N, classes). `draws` holds the random numbers of these N examples (rbtools.rng.draws.Draws).
        """
        raise NotImplementedError

    def runner(self, oracle: Oracle) -> Callable[..., tuple[Tensor, dict[str, Tensor]]]:
        """The function that runs the search on this oracle: `run`, or `lattice.run` for 8-bit images and for
        means over samples."""
        means = self.over_draws and (self.draws_each > 1 or oracle.randomised)
        plain = self.grid == "none" and (self.batch_dependent or not means)
        return self.run if plain else functools.partial(lattice.run, self)

    def run(
        self, model: Oracle, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Perturb images. Also returns a dictionary with additional results (N,).

        The result `broken_by` (an index in `parts`) is returned by aa, and `distance` by cw-l2, fmn and ddn.
        """
        return self(model, images, labels, draws), {}


class SequentialAttack(Attack):
    """Base class of the attacks in this package, which are frozen dataclasses with a method `stages`."""

    loss: ClassVar[str | None] = "none"

    @property
    def over_draws(self) -> bool:
        return self.in_ball

    def loss_for(self, classes: int) -> str:
        least, instead = _NEEDS.get(str(self.loss), (0, ""))
        return str(self.loss) if classes >= least else instead

    def stages(self, classes: int) -> list[Stage]:
        """The stages for a model with this number of classes, which is 0 if there is no clean pass."""
        raise NotImplementedError

    def stage_names(self, classes: int) -> list[str]:
        return [self.name for _ in self.stages(classes)]

    @check_input.outside_inference()
    def __call__(
        self,
        model: Oracle,
        images: Tensor,
        labels: Tensor,
        draws: Draws | None = None,
        *,
        seed: int = 0,
        examples: Tensor | None = None,
    ) -> Tensor:
        """Perturb `images` (N, C, H, W), in [0, 1] or uint8, as described in the base class.

        Without `draws`, the random numbers are the same as in the command with this `seed`. `examples`, int64
        (N,), are the positions of the images in their data set. By default image i is example i. Raises
        RbError for invalid input.
        """
        if draws is None:
            from rbtools.rng.draws import of_images

            check_input.check_model(model)
            model, images, labels = check_input.checked(model, images, labels)
            draws = of_images(f"attack.{self.name}", images, seed, examples)
        return lattice.run(self, model, images, labels, draws)[0]

    def run(
        self, model: Oracle, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Run the stages in turn, each on the examples that are still classified correctly."""
        threat = self.threat
        points = threat.unchanged(images)
        if threat.empty or len(images) == 0:
            return points, {}
        # --help does not need these imports
        from rbtools.attacks.active_examples import CLEAN, STILL_CORRECT, AttackBatch
        from rbtools.attacks.oracle import oracle_of

        unchanged = None if self.in_ball else points.clone()
        oracle, classes = oracle_of(model), 0
        batch = AttackBatch(images, labels, draws, unchanged=unchanged)
        by = torch.full_like(labels, STILL_CORRECT)
        left = torch.arange(len(batch), device=labels.device)
        with torch.no_grad():
            if self.clean_pass:
                logits = oracle.logits(images)
                classes, correct = logits.shape[1], oracle.still_correct(images, labels, logits)
                by[~correct] = CLEAN
                left = correct.nonzero()[:, 0]
                batch = replace(batch, logits=logits).take(left)
            stages, number = self.stages(classes), 0
            while number < len(stages) and len(batch):
                stage, shared = stages[number], 0
                if hasattr(stage, "joined"):
                    room = 1 if oracle.randomised else batch.room
                    stage, shared = stage.joined(stages[number + 1 : number + room])
                name, unbroken = self.stage_names(classes)[number], f"{len(batch)} of {len(images)} unbroken"
                oracle.passes.stage = f"{name}, {number + 1} of {len(stages)} · {unbroken} · "
                more = number + 1 + shared < len(stages)
                some = oracle.take(left)
                alone = batch.schedule.unconfirmed(some)
                if alone is not None:
                    batch, some = replace(batch, decides=some), alone

                # The next stage finds other points for examples that are not broken.
                found = some.partial.open(some)
                if found is None:
                    ends, broken = stage(some, batch, more)
                    ends = ends[broken] if more else ends
                    found = some.partial.close({"broken": broken, "points": ends})
                broken = found["broken"]
                points[left[broken] if more else left] = found["points"]
                by[left] = torch.where(broken, number, STILL_CORRECT)
                number += 1 + shared
                on = (~broken).nonzero()[:, 0]
                if len(on) < len(left):
                    left, batch = left[on], batch.take(on)
        return points, self.findings(by, classes)

    def findings(self, by: Tensor, classes: int) -> dict[str, Tensor]:
        """The additional results of `run`. `by` (N,) is the number of the stage that broke each example."""
        return {}


class ReferenceBackend(SequentialAttack):
    """Base class of attacks that can also run AutoAttack's own code (`--backend pyautoattack`)."""

    backend: str

    @property
    def batch_dependent(self) -> bool:
        return self.backend == "pyautoattack"

    def reference(self, tame: TameModel, images: Tensor, seed: int) -> Callable[[Tensor, Tensor], Tensor]:
        """AutoAttack's own attack for images of this shape: a function from images and labels to images."""
        raise NotImplementedError

    def run(
        self, model: Oracle, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.backend != "pyautoattack":
            return super().run(model, images, labels, draws)
        from rbtools.attacks import pyauto
        from rbtools.attacks.oracle import oracle_of

        return pyauto.run(self, oracle_of(model), images, labels, draws), {}

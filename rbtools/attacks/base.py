"""What an attack is, and those written here: stages, each on what the ones before it did not break.

Nothing here imports torch, so that the classes of attacks load with `--help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_batch import Stage
    from rbtools.attacks.steps import Model

# A loss that needs more classes than the model has is replaced by the margin behind it, which
# points the same way: only the scale that several logits would give is missing.
_NEEDS = {"dlr": (3, "margin"), "targeted-dlr": (4, "targeted-margin")}


def norm_param() -> Any:
    """The field of attacks that know both norms."""
    return param("linf", "The norm that bounds the perturbation.", choices=("linf", "l2"))


def backend_param() -> Any:
    """The field of attacks that AutoAttack's own code has as well."""
    return param(
        "rbtools",
        "Whose code runs: this package's, or AutoAttack's own.",
        choices=("rbtools", "pyautoattack"),
    )


class Attack:
    """What every registered attack is: a frozen, keyword-only dataclass below this class, with `__call__`.

    `eps` is the radius of the ball of `norm` ("linf" or "l2"), in pixel units of [0, 1].
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    # The name of what is increased; None where an attack has no loss.
    loss: ClassVar[str | None] = None
    # Which point of a run is judged: "any" of them, or the "last".
    iterate: str = "any"
    eps: float
    norm: str = "linf"

    @property
    def stem(self) -> str:
        """The metric's name without the distance ("pgd20.l2")."""
        return self.name + (".l2" if self.norm == "l2" else "")

    @property
    def random(self) -> bool:
        """Whether the result depends on the draws."""
        return True

    @property
    def batch_dependent(self) -> bool:
        """Whether random numbers belong to the batch and not to the example.

        Such an attack gets the same examples together every time, whatever batch the memory allows.
        """
        return False

    @property
    def clean_pass(self) -> bool:
        """Whether the unchanged images are looked at first; those that are wrong come back as they are."""
        return True

    def loss_for(self, classes: int) -> str | None:
        """The loss in use for a model of that many classes."""
        return self.loss

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        """Perturb `images`.

        Shape: images float32 (N, C, H, W) in [0, 1]; labels int64 (N,); the result is as images.
        `model` maps images to logits (N, classes); `draws` holds the random numbers of these N
        examples (rbtools.rng.draws.Draws).
        """
        raise NotImplementedError

    def run(
        self, model: Model, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Perturb images; also return what else there is to know of each example, by name (N,):
        `broken_by` of aa (a number in its `parts`), `distance` of cw-l2.
        """
        return self(model, images, labels, draws), {}


class SequentialAttack(Attack):
    """What the attacks written here share; a frozen dataclass with `stages` becomes an attack."""

    loss: ClassVar[str | None] = "none"

    def loss_for(self, classes: int) -> str:
        """The loss in use: the one behind it where the model has too few classes."""
        least, instead = _NEEDS.get(str(self.loss), (0, ""))
        return str(self.loss) if classes >= least else instead

    def stages(self, classes: int) -> list[Stage]:
        """The stages for a model of that many classes (0 where no clean pass was made)."""
        raise NotImplementedError

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        return self.run(model, images, labels, draws)[0]

    def run(
        self, model: Model, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.eps == 0 or len(images) == 0:
            return images.clone(), {}
        from rbtools.attacks import active_batch

        perturbed, by, classes = active_batch.run_stages(
            model, active_batch.AttackBatch(images, labels, draws), self.stages, clean_pass=self.clean_pass
        )
        return perturbed, self.findings(by, classes)

    def findings(self, by: Tensor, classes: int) -> dict[str, Tensor]:
        """What `run` tells of each example, from the number of the stage that broke it (N,)."""
        return {}


class ReferenceBackend(SequentialAttack):
    """An attack that AutoAttack's own code has as well: `--backend pyautoattack` runs that."""

    backend: str

    @property
    def batch_dependent(self) -> bool:
        """Whether the random numbers are drawn for the batch as a whole, as AutoAttack's code does."""
        return self.backend == "pyautoattack"

    def run_reference(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        """Perturb images by AutoAttack's own code."""
        raise NotImplementedError

    def run(
        self, model: Model, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.backend == "pyautoattack":
            return self.run_reference(model, images, labels, draws), {}
        return super().run(model, images, labels, draws)


def need_random_start(attack: str, restarts: int, start: str) -> None:
    """Raise RbError where restarts would all be the same."""
    if restarts > 1 and start == "zero":
        raise RbError(
            f"Attack '{attack}' has {restarts} restarts but starts at the image, so every run would be"
            " the same. Use start 'uniform', or restarts 1."
        )

"""The shape of an attack written here: runs in turn, each on what the ones before it left standing.

Nothing here imports torch, so that the classes of attacks load with `--help`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rbtools.errors import RbError
from rbtools.registry import param

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.attacks.active_batch import Run
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


class SequentialAttack:
    """What the attacks written here share; a frozen dataclass with `runs` becomes an attack.

    `loss` names what is increased. `clean_pass` is False where the unchanged images need not be
    looked at first; with it, images that are classified wrong come back as they are.
    """

    name: ClassVar[str]
    loss: ClassVar[str] = "none"
    eps: float
    norm: str = "linf"

    @property
    def stem(self) -> str:
        """How metrics call it, without the distance."""
        return self.name + (".l2" if self.norm == "l2" else "")

    @property
    def batch_dependent(self) -> bool:
        """Never: every random number here belongs to one example."""
        return False

    @property
    def clean_pass(self) -> bool:
        return True

    def loss_for(self, classes: int) -> str:
        """The loss in use for a model of that many classes."""
        least, instead = _NEEDS.get(self.loss, (0, self.loss))
        return self.loss if classes >= least else instead

    def runs(self, classes: int) -> list[Run]:
        """The runs for a model of that many classes (0 where no clean pass was made)."""
        raise NotImplementedError

    def __call__(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        return self.run(model, images, labels, draws)[0]

    def run(
        self, model: Model, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Perturb images; also return what else there is to know of each example, by name (N,)."""
        if self.eps == 0 or len(images) == 0:
            return images.clone(), {}
        from rbtools.attacks import active_batch

        perturbed, by, classes = active_batch.run_stages(
            model, active_batch.AttackBatch(images, labels, draws), self.runs, clean_pass=self.clean_pass
        )
        return perturbed, self.findings(by, classes)

    def findings(self, by: Tensor, classes: int) -> dict[str, Tensor]:
        """What `run` tells of each example, from the number of the run that broke it (N,)."""
        return {}


class ReferenceBackend(SequentialAttack):
    """An attack that AutoAttack's own code has as well: `--backend pyautoattack` runs that."""

    backend: str

    @property
    def batch_dependent(self) -> bool:
        """Whether the random numbers are drawn for the batch as a whole, as AutoAttack's code does."""
        return self.backend == "pyautoattack"

    def theirs(self, model: Model, images: Tensor, labels: Tensor, draws: Any) -> Tensor:
        """Perturb images by AutoAttack's own code."""
        raise NotImplementedError

    def run(
        self, model: Model, images: Tensor, labels: Tensor, draws: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.backend == "pyautoattack":
            return self.theirs(model, images, labels, draws), {}
        return super().run(model, images, labels, draws)


def need_random_start(attack: str, restarts: int, start: str) -> None:
    """Raise RbError where restarts would all be the same."""
    if restarts > 1 and start == "zero":
        raise RbError(
            f"Attack '{attack}' has {restarts} restarts but starts at the image, so every run would be"
            " the same. Use start 'uniform', or restarts 1."
        )

"""Scores of the neural tangent kernels of the images, of the adversarial images, and between the two sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn, torch
from rbtools.measures import kernel
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value
from rbtools.registry import param

KERNELS = ("clean", "robust", "twice", "joint")
# A smallest eigenvalue below this share of the largest is rounding error.
_SINGULAR = 1e-13


@dataclass(frozen=True, kw_only=True)
class NTK(Measure):
    """Scores of the empirical neural tangent kernel of a network at initialisation (NAS-RobBench-201).

    The kernel is computed for the sum of the logits, K_ij = <df(x_i)/dw, df(x_j)/dw>. The scores of a kernel
    are fro, the Frobenius norm (KNAS' estimate of the smallest eigenvalue); trace (EigenNAS); lmin, the
    smallest eigenvalue; and cond, the largest divided by the smallest eigenvalue. The kernel ntk.clean is
    computed on the images, ntk.robust on the images attacked once, and ntk.twice on the images attacked
    twice. The kernel ntk.cross is computed between images and attacked images, and ntk.cross2 between images
    attacked once and twice.

    With the weight `beta` (b) of the adversarial loss, ntk.all is (1-b)^2 clean + b(1-b)(cross + its
    transpose) + b^2 robust, which governs clean accuracy. The kernel ntk.all_robust is the same sum for the
    images attacked once and twice, which governs robust accuracy. Both ntk.all and ntk.all_robust also have
    the score bound, the mean over classes of y'K^-1 y, where y is +1 for the class and -1 for the other
    classes.

    On fresh weights, BatchNorm uses the statistics of the batch, separately for images and attacked images.
    f(x_i) is then the output for image i in its batch, and its derivative includes the dependence on the
    other images. The running statistics of fresh weights are mean 0 and variance 1. With these, the signal
    fades with depth, and only the last bias contributes to the kernel. KNAS' code passes each image
    separately in training mode, which corresponds to the statistics "image". The statistics "image" cost as
    much as running statistics. The statistics of the batch need a backward pass through the batch for each
    image.
    """

    name = "ntk"
    weights = "init"
    size = 1, 50
    batchnorm = "batch"
    missing = "the kernel is singular: two images have the same gradient, or all gradients are 0"

    kernel: str = param(
        "robust",
        "Kernels to compute. Each choice includes those before it: clean (of the images), robust (of"
        " attacked images), twice (of images attacked twice), joint (the kernels all and all_robust, and"
        " bounds).",
        choices=KERNELS,
    )
    beta: float = param(0.5, "Weight of the adversarial loss in the joint kernels.", check="fraction")
    logits: str = param(
        "sum",
        "Use the kernel of the sum of the logits, or the sum of the kernels of all logits. For two"
        " classes, the kernel of the difference of the logits is that of the theory's single output.",
        choices=("sum", "each", "difference"),
    )

    @property
    def attacks(self) -> int:
        return min(KERNELS.index(self.kernel), 2)

    @classmethod
    def asked(cls, words: Collection[str]) -> dict[str, Any]:
        """The last kernel that is needed. All kernels before it in KERNELS are also computed."""
        among = (kernel for kernel in reversed(KERNELS) if kernel in words)
        joint = not {"all", "all_robust"}.isdisjoint(words)
        return {"kernel": "joint" if joint else next(among, KERNELS[0])}

    def settings(self, value: str) -> dict[str, Any]:
        joint = {"beta": self.beta} if value.startswith("all") else {}
        return {"logits": self.logits, **joint}

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        images = [batch.images]
        images += [batch.attacked] if self.attacks > 0 else []
        images += [batch.attacked_twice] if self.attacks > 1 else []
        # The kernels are the blocks of one kernel of clean and attacked images together.
        each = self.logits == "each"
        if self.logits == "difference":
            model = difference(model, batch)
        if batch.together:
            gram = kernel.gram_of_batches(model, images, each_logit=each).cpu()
        else:
            gram = kernel.gram(model, torch.cat(images), each_logit=each).cpu()
        n = len(batch)
        blocks = [[part.clone() for part in row.split(n, dim=1)] for row in gram.split(n)]
        result: BatchResult = {}
        for index, name in enumerate(KERNELS[: len(blocks)]):
            result |= _scores(name, blocks[index][index])
        if len(blocks) > 1:
            result |= _norms("cross", blocks[0][1])
        if len(blocks) > 2:
            result |= _norms("cross2", blocks[1][2])
        if self.kernel == "joint":
            b = self.beta
            for name, at in (("all", 0), ("all_robust", 1)):
                cross, robust = blocks[at][at + 1], blocks[at + 1][at + 1]
                joint = (1 - b) ** 2 * blocks[at][at] + b * (1 - b) * (cross + cross.T) + b**2 * robust
                result |= _scores(name, joint) | {f"{name}.bound": _bound(joint, batch.labels.cpu())}
        return result

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        values = super().values(results, sizes)
        return [replace(value, clean=value.name.startswith("clean.")) for value in values]


def difference(model: nn.Module, batch: MeasureBatch) -> nn.Module:
    """A network that returns the difference of the two logits. Raises RbError for more than two classes."""
    from rbtools.measures.scalar import Difference

    with torch.no_grad():
        count = model(batch.images).shape[1]
    if count != 2:
        raise RbError(
            f"The difference of the logits needs two classes, but the network has {count}. Choose two:"
            " --dataset cifar10:classes=cat/dog."
        )
    return Difference(model)


def _norms(name: str, kernel: Tensor) -> BatchResult:
    return {f"{name}.fro": float(kernel.norm()), f"{name}.trace": float(kernel.trace())}


def _scores(name: str, kernel: Tensor) -> BatchResult:
    scores = _norms(name, kernel)
    if not kernel.isfinite().all():
        return scores | {f"{name}.lmin": torch.nan, f"{name}.cond": torch.nan}
    values = torch.linalg.eigvalsh((kernel + kernel.T) / 2)
    low, high = float(values[0]), float(values[-1])
    return scores | {f"{name}.lmin": low, f"{name}.cond": high / low if low > _SINGULAR * high else None}


def _bound(kernel: Tensor, labels: Tensor) -> float | None:
    """The mean over the classes of y'K^-1 y, or None if K is singular."""
    if not kernel.isfinite().all():
        return torch.nan
    values, vectors = torch.linalg.eigh((kernel + kernel.T) / 2)
    if float(values[0]) <= _SINGULAR * float(values[-1]):
        return None
    classes = labels.unique()
    signs = labels[:, None].eq(classes[None]).double() * 2 - 1
    each = ((vectors.T @ signs).square() / values[:, None]).sum(0)
    return float(each.mean())

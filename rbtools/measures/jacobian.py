"""Jacobian: Frobenius norm of the derivative of the logits with respect to the pixels."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.errors import RbError
from rbtools.lazy import Tensor, nn, torch
from rbtools.measures import derivatives
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, over_batches, watching
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class Jacobian(Measure):
    """Root mean square over the images of the Frobenius norm of the Jacobian of the logits.

    The norm is estimated by random projection (Hoffman et al. 2019, arXiv:1908.02729). The squared norm is C
    times the mean squared length of the gradient of v.z, for v uniform on the unit sphere of the C logits z.
    Each image has its own v. With `exact`, the C unit vectors are used instead. Derivatives are with respect
    to pixels in [0, 1]. Derivatives with respect to normalised inputs would differ by the factor 1/std.

    If BatchNorm uses the batch's statistics, the result is the derivative of an image's logits with respect
    to all pixels of the batch, because the directions of different images are independent.

    Raises RbError if `exact` needs more memory than is free, and for `exact` with the batch's statistics.
    """

    name = "jacobian"
    size = 10, 256
    batchnorm = "running"
    placed = True
    random = True
    less_is_better = True

    projections: int = param(1, "Number of random directions per image.", check="positive")
    exact: bool = param(False, "Use all logits instead of random directions.")

    @property
    def of_images(self) -> bool:
        return not self.exact  # the size of its chunks depends on the free memory

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        if self.exact and batch.together:
            raise RbError(
                "--exact computes each image's Jacobian separately, but with --batchnorm batch, an"
                " image's logits depend on the other images. Leave out one of the two."
            )
        squares: list[Tensor] = []
        rows = torch.arange(len(batch), device=batch.images.device)
        chunk = self._chunk(model, batch) if self.exact else batch.chunk
        with derivatives.differentiating():
            for some in rows.split(chunk):
                logits, pull = derivatives.pullback(model, batch.images[some])
                if self.exact:
                    basis = torch.eye(logits.shape[1], device=logits.device, dtype=logits.dtype)
                    each = torch.func.vmap(lambda v, z=logits, f=pull: f(v.expand_as(z)))(basis)
                    squares.append(each.double().square().flatten(2).sum((0, 2)))
                    continue
                draws = batch.draws.take(some).child("jacobian")
                estimate = torch.zeros(len(some), dtype=torch.float64, device=logits.device)
                for number in range(self.projections):
                    v = draws.normal((logits.shape[1],), number)
                    v /= v.norm(dim=1, keepdim=True)
                    estimate += pull(v).double().flatten(1).square().sum(1)
                squares.append(estimate * (logits.shape[1] / self.projections))
        return {"": torch.cat(squares).tolist()}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        means = [torch.tensor(result[""], dtype=torch.float64).mean() for result in results]
        return [over_batches("", [math.sqrt(float(mean)) for mean in means], sizes)]

    def _chunk(self, model: nn.Module, batch: MeasureBatch) -> int:
        """The number of images for which the gradients of all logits fit into memory together."""
        classes = len(model(batch.images[:1])[0])
        # Two gradients of the size of the largest feature map for each class, in float32.
        need = classes * 2 * max(largest_map(model, batch.images[:1]), batch.images[0].numel()) * 4
        free = free_memory(batch.images.device)
        if need > free:
            raise RbError(
                f"The full Jacobian of one image has {classes} logits and needs {need / 2**30:.3g} GiB, but"
                f" {free / 2**30:.3g} GiB are free. Leave out exact: a random projection needs one gradient."
            )
        return max(1, min(batch.chunk, int(free / 2 / need)))


def free_memory(device: torch.device) -> int:
    """Free memory of a device in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo") as file:
            kibibytes = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
        return int(kibibytes) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def largest_map(model: nn.Module, images: Tensor) -> int:
    """The number of values in the largest output of a layer for these images (N, C, H, W)."""
    sizes = [images.numel()]

    def seen(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, torch.Tensor):
            sizes.append(output.numel())

    with watching(model.modules(), seen), torch.no_grad():
        model(images)
    return max(sizes)

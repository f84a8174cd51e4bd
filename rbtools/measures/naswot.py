"""NASWOT: how well an untrained network separates the images of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from rbtools.errors import RbError
from rbtools.lazy import F, Tensor, nn, torch
from rbtools.measures.base import BatchResult, Measure, MeasureBatch


@dataclass(frozen=True, kw_only=True)
class NASWOT(Measure):
    """log|det K|, where K_ij is the number of ReLU units in the same state (on or off) for images i and j.

    The score is from Mellor et al. 2021 (arXiv:2006.04647). A ReLU counts if a gradient of the logits reaches
    it. There is no value if all units have the same state for two images. The authors' network is in training
    mode, so BatchNorm uses the statistics of the batch.

    Raises RbError if the network has no ReLU.
    """

    name = "naswot"
    weights = "init"
    size = 1, 128
    batchnorm = "batch"
    missing = "K is singular: all ReLU units have the same states for two images of a batch"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        kernel = agreement(model, batch.images)
        sign, log = torch.linalg.slogdet(kernel)
        # Rows are compared exactly, because rounding can make a zero determinant nonzero.
        apart = len(torch.unique(kernel, dim=0)) == len(kernel)
        return {"": float(log) if apart and float(sign) > 0 and bool(log.isfinite()) else None}


def agreement(model: nn.Module, images: Tensor) -> Tensor:
    """The matrix K: the number of ReLU units in the same state for each pair of images, float64 (N, N). A
    ReLU counts if a gradient of the logits reaches it. Raises RbError if the model has no ReLU."""
    from torch.overrides import TorchFunctionMode

    relus = {F.relu, F.relu_, torch.relu, torch.relu_, torch.Tensor.relu, torch.Tensor.relu_}
    kernel = torch.zeros(len(images), len(images), dtype=torch.float64, device=images.device)
    any_relu = False

    def count(on: Tensor, gradient: Tensor) -> None:
        for part in on.flatten(1).split(1 << 22, dim=1):  # in float32 sums of up to 2^24 ones are exact
            code = part.float()
            kernel.add_(code @ code.T).add_((1 - code) @ (1 - code).T)

    class CountingRelus(TorchFunctionMode):
        """Records the output of every ReLU, layer or function, before an in-place operation overwrites it."""

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal any_relu
            output = function(*args, **(kwargs or {}))
            if function in relus:
                any_relu = True
                if output.requires_grad:
                    output.register_hook(partial(count, output.detach() > 0))
            return output

    with torch.enable_grad():
        points = images.detach().requires_grad_()
        with CountingRelus():
            logits = model(points)
        if not any_relu:
            raise RbError(
                "NASWOT compares ReLU units, but the model has none. Use another measure, such as ntk."
            )
        if logits.requires_grad:
            torch.autograd.grad(logits.sum(), points, allow_unused=True)
    return kernel

"""NASWOT: how well an untrained network separates the images of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rbtools.lazy import nn, torch
from rbtools.measures.base import BatchResult, Measure, MeasureBatch, Value, over_batches


@dataclass(frozen=True, kw_only=True)
class NASWOT(Measure):
    """log|det K| for K_ij the number of ReLU units in the same state, on or off, for images i and j.

    Mellor et al. 2021 (arXiv:2006.04647), over all ReLUs that a gradient of the logits reaches. There is no
    value where two images have the same code. The authors' network is in training mode: BatchNorm takes the
    statistics of the batch.

    Raises RbError for a network without a ReLU.
    """

    name = "naswot"
    weights = "init"
    size = (1, 128)
    batchnorm = "batch"

    def __call__(self, model: nn.Module, batch: MeasureBatch) -> BatchResult:
        from rbtools.measures import codes

        kernel = codes.agreement(model, batch.images)
        sign, log = torch.linalg.slogdet(kernel)
        # Equal rows are compared exactly: with rounding a zero determinant may come out nonzero.
        apart = len(torch.unique(kernel, dim=0)) == len(kernel)
        return {"": float(log) if apart and float(sign) > 0 and bool(log.isfinite()) else None}

    def values(self, results: Sequence[BatchResult], sizes: Sequence[int]) -> list[Value]:
        numbers = [result[""] for result in results]
        if None in numbers:
            reason = "K is singular: images of a batch have the same code"
            return [Value("", None, more={"reason": reason})]
        return [over_batches("", numbers, sizes)]

"""What names and shapes leave open, settled by what the network remembers of its training images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rbtools import models
from rbtools.models import statistics
from rbtools.models.families.base import Ambiguous, Inferred
from rbtools.models.fit import load_into
from rbtools.models.hollow import hollow
from rbtools.models.nasbench201 import edges_to_compute
from rbtools.models.normalize import Normalized
from rbtools.spaces.nasbench201 import ops_of

if TYPE_CHECKING:
    from rbtools.models.reading import Checkpoint

# How many times further from the file's statistics the second-best cell has to be than the best. With
# images of its training the factor is 5 for a robust network of one cell a stage (skip_connect against
# pooling), with synthetic ones 1.25.
MARGIN, MARGIN_SYNTHETIC = 1.5, 1.15
# A best divergence above this is no fit: the weights moved on since the statistics were taken, or the images
# are of another kind. On its own images the robust network has 0.003, on synthetic ones 0.06.
FAR, FAR_SYNTHETIC = 0.1, 0.3
FEW, FINALISTS = 16, 9  # images for a first look at more cells than this, and how many are looked at well


def cell(
    checkpoint: Checkpoint, ambiguous: Ambiguous, images: Tensor | None
) -> tuple[Inferred, dict[str, Any]]:
    """The one of several NAS-Bench-201 cells whose network sees what the file's BatchNorm remembers.

    `images` (N, C, H, W) in [0, 1] are the data set's; without them synthetic ones have to do. Returns
    the candidate and facts for the record. Raises `Ambiguous` where the margin is too small, or nothing
    is remembered.
    """
    candidates = _different(ambiguous.candidates)
    seen = (
        statistics.synthetic((candidates[0].in_channels, 32, 32), 2 * statistics.MANY)
        if images is None
        else images
    )
    networks = [_filled(checkpoint, one, seen) for one in candidates]
    if not statistics.remembers(networks[0]):
        raise Ambiguous(
            f"{ambiguous} (Its BatchNorm statistics would tell, but are those of a fresh network.)",
            ambiguous.candidates,
        )
    if len(networks) > FINALISTS:
        first = statistics.ranked(networks, seen[:FEW])[:FINALISTS]
        candidates = [candidates[place] for _, place in first]
        networks = [networks[place] for _, place in first]
    ranking = [(value, candidates[place]) for value, place in statistics.ranked(networks, seen)]
    return _decided(ranking, ambiguous, images)


def _decided(
    ranking: Sequence[tuple[float, Inferred]], ambiguous: Ambiguous, images: Tensor | None
) -> tuple[Inferred, dict[str, Any]]:
    best, found = ranking[0]
    margin = ranking[1][0] / max(best, 1e-9) if len(ranking) > 1 else None
    source = "synthetic images" if images is None else f"{len(images)} images of the data set"
    shown = {str(one.arch["name"]): round(value, 4) for value, one in ranking[:4]}
    enough, far = (MARGIN_SYNTHETIC, FAR_SYNTHETIC) if images is None else (MARGIN, FAR)
    if margin is not None and (margin < enough or best > far):
        listed = ", ".join(f"{name} ({value:g})" for name, value in shown.items())
        hint = " With --dataset, its images decide more sharply." if images is None else ""
        raise Ambiguous(
            f"{ambiguous} (By its BatchNorm statistics on {source}, ambiguous; candidates and their"
            f" divergences: {listed}.{hint})",
            [one for _, one in ranking],
        )
    facts: dict[str, Any] = {"arch_from": f"weights and BatchNorm statistics on {source}"}
    if margin is not None:
        facts |= {"arch_margin": round(margin, 3), "arch_divergences": shown}
    return found, facts


def _different(candidates: Sequence[Inferred]) -> list[Inferred]:
    """One candidate for each function: edges that nothing depends on do not count."""
    found: dict[tuple[int | None, ...], Inferred] = {}
    for one in sorted(candidates, key=lambda one: int(one.arch["index"])):
        ops = ops_of(one.arch)
        used = edges_to_compute(ops)
        found.setdefault(tuple(op if live else None for op, live in zip(ops, used, strict=True)), one)
    return list(found.values())


def _filled(checkpoint: Checkpoint, one: Inferred, images: Tensor) -> nn.Module:
    channels, height, width = images.shape[1:]
    with hollow():
        network = models.build(one.arch, classes=one.classes, shape=(channels, height, width))
    load_into(network, checkpoint)
    if checkpoint.mean is None or checkpoint.std is None:
        return network.eval()
    return Normalized(network, checkpoint.mean, checkpoint.std).eval()

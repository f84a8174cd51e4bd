"""What names and shapes leave open, settled by what the network remembers of its training images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rbtools import models
from rbtools.models import statistics, variants
from rbtools.models.cell_network import edges_to_compute
from rbtools.models.families.base import Ambiguous, Inferred
from rbtools.models.load_weights import load_into
from rbtools.models.meta_init import meta_init
from rbtools.models.normalising import behind
from rbtools.spaces.nasbench201 import ops_of

if TYPE_CHECKING:
    from rbtools.models.read_checkpoint import Checkpoint

# How many times further from the file's statistics the second-best cell has to be than the best. With
# images of its training the factor is 5 for a robust network of one cell a stage (skip_connect against
# pooling), with synthetic ones 1.25.
MARGIN, MARGIN_SYNTHETIC = 1.5, 1.15
# A best divergence above this is no fit: the weights moved on since the statistics were taken, or the images
# are of another kind. On its own images the robust network has 0.003, on synthetic ones 0.06.
FAR, FAR_SYNTHETIC = 0.1, 0.3
# The same for any whole network, on top of what so many images have by chance (1 / N). On photographs of
# their own data set networks have 0.01 to 0.03 (standard training), one of adversarial training had 0.13; the
# wrong one of two variants has 0.19 and more. Below the second number all is clear.
NETWORK_FAR, CLEAR = 0.15, 0.05
FEW, FINALISTS = 16, 9  # images for a first look at more cells than this, and how many are looked at well


def choose_function(
    candidates: Sequence[tuple[Mapping[str, Any], nn.Module]], pairs: Sequence[Any], images: Tensor
) -> tuple[int, int | None, dict[str, Any]]:
    """The place of the candidate (architecture and network, one for each function that the names and shapes
    allow) and of its normalisation, [mean, std] or as `behind` takes it, under which all BatchNorm layers see
    on the images (N, C, H, W) in [0, 1] what they remember. The normalisation is None where two fit alike;
    the candidate is the first where none fits or two fit alike.

    The facts for the record: the least `divergence`, the `most` that fits, whether it `fits`, its `margin`
    (how many times further off the next candidate is) and the `divergences` of all of them; `first` is that
    of the first layer alone, which sees little but the normalised image.
    """

    def measured(x: Tensor) -> list[list[float]]:
        models = [[behind(network, pair).eval() for pair in pairs] for _, network in candidates]
        return [[statistics.divergence(model, x) for model in row] for row in models]

    table = measured(images)
    if _unclear(table):
        crops = measured(statistics.cropped(images))
        table = [[min(pair) for pair in zip(*rows, strict=True)] for rows in zip(table, crops, strict=True)]
    least = [min(row) for row in table]
    order = sorted(range(len(least)), key=least.__getitem__)
    margin = _margin(least)
    most = round(NETWORK_FAR + 1 / len(images), 4)
    fits = min(least) <= most and (margin is None or margin >= MARGIN)
    best = order[0] if fits else 0
    pair = table[best].index(least[best]) if (_margin(table[best]) or MARGIN) >= MARGIN else None
    fit: dict[str, Any] = {
        "divergence": round(min(least), 4),
        "most": most,
        "fits": fits,
        "images": len(images),
    }
    if not fits:
        bare = behind(candidates[0][1], pairs[0]).eval()
        first = min(statistics.divergence(bare, x, first=True) for x in (images, statistics.cropped(images)))
        fit["first"] = round(first, 4)
    if margin is not None:
        fit["margin"] = round(margin, 3)
        fit["divergences"] = {variants.label(candidates[i][0]): round(least[i], 4) for i in order}
    return best, pair, fit


def _unclear(table: Sequence[Sequence[float]]) -> bool:
    """Whether cropped images may change what these divergences (candidates x normalisations) say."""
    rows = [min(row) for row in table]
    best = table[rows.index(min(rows))]
    return min(rows) > CLEAR or any((_margin(values) or MARGIN) < MARGIN for values in (rows, best))


def _margin(values: Sequence[float]) -> float | None:
    """How many times as large as the least the next one is; None for one alone."""
    if len(values) < 2:
        return None
    least, second = sorted(values)[:2]
    return second / max(least, 1e-9)


def choose_cell(
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
    margin = _margin([value for value, _ in ranking])
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
    with meta_init():
        network = models.build(one.arch, classes=one.classes, shape=(channels, height, width))
    load_into(network, checkpoint)
    own = None if checkpoint.mean is None else [checkpoint.mean, checkpoint.std]
    return behind(network, own).eval()

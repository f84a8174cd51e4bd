"""Variants and cells that names and shapes cannot distinguish, chosen by BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rbtools import models
from rbtools.models import statistics
from rbtools.models.cell_network import edges_to_compute
from rbtools.models.families import Ambiguous, Inferred
from rbtools.models.load_weights import load_into, meta_init
from rbtools.models.normalising import behind
from rbtools.spaces import zoo
from rbtools.spaces.nasbench201 import ops_of
from rbtools.spaces.zoo import SHORTCUTS, TRACELESS, PreActResNetForm, ResNetForm, WideResNetForm

if TYPE_CHECKING:
    from rbtools.models.read_checkpoint import Checkpoint

# Fields of an architecture record that distinguish variants.
VARIANT_FIELDS = ("stem", "shortcut", "activation", "eps")

# How many times further from the file's statistics the second-best cell has to be than the best. With
# images of its training the factor is 5 for a robust network of one cell a stage (skip_connect against
# pooling), with synthetic ones 1.25.
MARGIN, MARGIN_SYNTHETIC = 1.5, 1.15
# Above this divergence even the best candidate does not fit: the weights changed after the statistics were
# computed, or the images are of another kind. On its own images the robust network has 0.003, on synthetic
# ones 0.06.
FAR, FAR_SYNTHETIC = 0.1, 0.3
# The same for whole networks, in addition to the 1 / N that N images have by chance. On photographs of their
# own data set networks have 0.01 to 0.03 (standard training), one of adversarial training had 0.13; the wrong
# one of two variants has 0.19 and more. Below the second number the fit is certain.
NETWORK_FAR, CLEAR = 0.15, 0.05
USUAL = 0.03  # up to this divergence no unusual activation or epsilon is tried
FEW, FINALISTS = 16, 9  # images for ranking more cells than FINALISTS; only the finalists use all images


def variants_of(arch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The architecture and its known variants: networks with the same tensor names and shapes that compute
    another function.

    The architecture itself is the first.
    """
    usual = {"shortcut": SHORTCUTS[0], **arch}
    others = [fields for fields in _variant_fields(arch) if any(usual.get(f) != v for f, v in fields.items())]
    return [dict(arch), *({**arch, **fields} for fields in others)]


def unusual_variants_of(arch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The variants with an unusual activation or epsilon of BatchNorm, one change each.

    They are compared where the usual ones fit badly.
    """
    if arch.get("space") in models.VARIANTS:
        others = models.VARIANTS.load(str(arch["space"]))(arch).unusual
        return [{**arch, **fields} for fields in others]
    form = zoo.form(str(arch["name"])) if arch.get("space") == "zoo" else None
    if not isinstance(form, (ResNetForm, PreActResNetForm, WideResNetForm)):
        return []
    return [
        {**arch, field: value}
        for field, values in TRACELESS.items()
        for value in values
        if value != arch.get(field, values[0])
    ]


def usual_fields(arch: Mapping[str, Any]) -> dict[str, str]:
    """The fields of the usual variant of a network."""
    return dict(models.VARIANTS.load(str(arch["space"]))(arch).usual)


def label(arch: Mapping[str, Any]) -> str:
    """The name for messages and `--arch`: NAME or NAME:FIELD=VALUE, with the space unless it is the zoo."""
    space = "" if arch.get("space") in ("zoo", "nasbench201") else f"{arch.get('space')}:"
    fields = [f":{field}={arch[field]}" for field in (*VARIANT_FIELDS, "pool") if field in arch]
    return f"{space}{arch.get('name') or arch.get('str')}{''.join(fields)}"


def _variant_fields(arch: Mapping[str, Any]) -> list[dict[str, str]]:
    """The fields of each variant of a network."""
    name = str(arch.get("name"))
    if arch.get("space") in models.VARIANTS:
        return list(models.VARIANTS.load(str(arch["space"]))(arch).known)
    form = zoo.FORMS.get(name) if arch.get("space") == "zoo" else None
    if isinstance(form, ResNetForm) and arch.get("stem") != "imagenet" and arch.get("pool") != "4x4":
        return [{"stem": "cifar"}, {"stem": "cifar-maxpool"}]
    if isinstance(form, PreActResNetForm):
        return [{"shortcut": shortcut} for shortcut in SHORTCUTS]
    return []


def choose_function(
    candidates: Sequence[tuple[Mapping[str, Any], nn.Module]], pairs: Sequence[Any], images: Tensor
) -> tuple[int, int | None, dict[str, Any]]:
    """The indices of the candidate and of the normalisation whose statistics match the file's, and facts.

    A candidate is an architecture and its network, one for each function that the names and shapes allow; a
    normalisation is [mean, std] or another argument of `behind`. The statistics of all BatchNorm layers on
    the images (N, C, H, W) in [0, 1] are compared with those in the file. The index of the normalisation is
    None where two fit equally well; that of the candidate is 0 where none fits or two fit equally well.

    The facts for the record: the least `divergence`, the largest one that fits (`most`), whether it `fits`,
    its `margin` (the ratio of the second least divergence to the least) and the `divergences` of all
    candidates; `first` is the divergence of the first layer, which depends on little but the normalisation.
    """

    def measured(x: Tensor) -> list[list[float]]:
        models = [[behind(network, pair).eval() for pair in pairs] for _, network in candidates]
        return [[statistics.divergence(model, x) for model in row] for row in models]

    table = measured(images)
    rows = [min(row) for row in table]
    margins = [_margin(values) or MARGIN for values in (rows, table[rows.index(min(rows))])]
    if min(rows) > CLEAR or min(margins) < MARGIN:  # with cropped images the choice may differ
        crops = measured(statistics.cropped(images))
        table = [[min(pair) for pair in zip(*rows, strict=True)] for rows in zip(table, crops, strict=True)]
    least = [min(row) for row in table]
    order = sorted(range(len(least)), key=least.__getitem__)
    margin = _margin(least)
    most = round(NETWORK_FAR + 1 / len(images), 4)
    fits = min(least) <= most and (margin is None or margin >= MARGIN)
    best = order[0] if fits else 0
    pair = table[best].index(least[best]) if (_margin(table[best]) or MARGIN) >= MARGIN else None
    fit: dict[str, Any] = {"divergence": round(min(least), 4), "most": most, "fits": fits}
    fit["images"] = len(images)
    if not fits:
        bare = behind(candidates[0][1], pairs[0]).eval()
        first = min(statistics.divergence(bare, x, first=True) for x in (images, statistics.cropped(images)))
        fit["first"] = round(first, 4)
    if margin is not None:
        fit["margin"] = round(margin, 3)
        fit["divergences"] = {label(candidates[i][0]): round(least[i], 4) for i in order}
    return best, pair, fit


def _margin(values: Sequence[float]) -> float | None:
    """The ratio of the second least value to the least; None for a single value."""
    if len(values) < 2:
        return None
    least, second = sorted(values)[:2]
    return second / max(least, 1e-9)


def choose_cell(
    checkpoint: Checkpoint, ambiguous: Ambiguous, images: Tensor | None
) -> tuple[Inferred, dict[str, Any]]:
    """The NAS-Bench-201 cell, of several, whose layers' statistics match the file's BatchNorm statistics.

    `images` (N, C, H, W) in [0, 1] are the data set's; without them synthetic images are used. Returns
    the candidate and facts for the record. Raises `Ambiguous` where the margin is too small, or the file has
    no statistics.
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
            f"{ambiguous} (Its BatchNorm statistics would decide, but are those of a fresh network.)",
            ambiguous.candidates,
        )
    if len(networks) > FINALISTS:
        first = statistics.ranked(networks, seen[:FEW])[:FINALISTS]
        candidates = [candidates[place] for _, place in first]
        networks = [networks[place] for _, place in first]
    ranking = [(value, candidates[place]) for value, place in statistics.ranked(networks, seen)]
    best, winner = ranking[0]
    margin = _margin([value for value, _ in ranking])
    source = "synthetic images" if images is None else f"{len(images)} images of the data set"
    shown = {str(one.arch["name"]): round(value, 4) for value, one in ranking[:4]}
    enough, far = (MARGIN_SYNTHETIC, FAR_SYNTHETIC) if images is None else (MARGIN, FAR)
    # Outputs that are not finite decide nothing: their divergences and margin are NaN.
    if margin is not None and not (margin >= enough and best <= far):
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
    return winner, facts


def _different(candidates: Sequence[Inferred]) -> list[Inferred]:
    """One candidate for each function: edges that the output does not depend on are ignored."""
    by_function: dict[tuple[int | None, ...], Inferred] = {}
    for one in sorted(candidates, key=lambda one: int(one.arch["index"])):
        ops = ops_of(one.arch)
        used = edges_to_compute(ops)
        by_function.setdefault(tuple(op if live else None for op, live in zip(ops, used, strict=True)), one)
    return list(by_function.values())


def _filled(checkpoint: Checkpoint, one: Inferred, images: Tensor) -> nn.Module:
    channels, height, width = images.shape[1:]
    with meta_init():
        network = models.build(one.arch, classes=one.classes, shape=(channels, height, width))
    load_into(network, checkpoint)
    mean, std = checkpoint.mean, checkpoint.std
    return behind(network, None if mean is None or std is None else (mean, std)).eval()

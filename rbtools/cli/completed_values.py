"""Tab completion for values that are names in a registry, also within lists (`erm,tr`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from rbtools import registry
from rbtools.cli.declare import Option


def _datasets(tool: str) -> list[str]:
    from rbtools.datasets import DATASETS

    return [*DATASETS, *DATASETS.plugins]


def _normalizations(tool: str) -> list[str]:
    from rbtools.datasets.normalization import NORMALIZATIONS

    return [*NORMALIZATIONS, "none", "per-image"]


def _presets(tool: str) -> list[str]:
    groups = {"rb-train": "training", "rb-ge": "pr"}
    return [*registry.gathered(f"{groups.get(tool, tool.removeprefix('rb-'))}-presets")]


def _metrics(tool: str) -> list[str]:
    """The names of metrics as the tools measure them without options."""
    from rbtools.attacks import ATTACKS
    from rbtools.evaluation.accuracy import Attacked

    every = (ATTACKS.load(name) for name in (*ATTACKS, *ATTACKS.plugins))
    return [
        "acc",
        "score",
        *(Attacked(method=cls()).name() for cls in every),
        "corrupt.mean",
        "wci",
        "ge.acc",
    ]


_VALUES: dict[str, Callable[[str], list[str]]] = {
    "dataset": _datasets,
    "normalize": _normalizations,
    "preset": _presets,
    "by": _metrics,
    "metric": _metrics,
}


def of_option(option: Option) -> Callable[..., list[CompletionItem]] | None:
    """What completes the values of an option: such names, or the names of files. None if nothing does."""
    if option.flags and (names := _VALUES.get(option.name)) is not None:
        return lambda ctx, param, typed: completed(typed, names(str(ctx.find_root().info_name)))
    metavar = option.field.metadata["metavar"] or ""
    return click.Path().shell_complete if "FILE" in metavar or "DIR" in metavar else None


def completed(typed: str, names: Sequence[str]) -> list[CompletionItem]:
    """The names that complete the last word of a list, such as erm,tr."""
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]

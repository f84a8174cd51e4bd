"""Tab completion for values that are names in a registry, also within lists (`erm,tr`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from click.shell_completion import CompletionItem

from rbtools import registry


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
    "objective": _metrics,
    "lower": _metrics,
    "higher": _metrics,
}


def add_to(params: Sequence[click.Parameter]) -> None:
    """Let the options whose values are such names complete them."""
    for param in params:
        names = _VALUES.get(str(param.name))
        if names is not None and isinstance(param, click.Option):
            param._custom_shell_complete = _completer(names)


def _completer(names: Callable[[str], list[str]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        return completed(typed, names(str(ctx.find_root().info_name)))

    return complete


def completed(typed: str, names: Sequence[str]) -> list[CompletionItem]:
    """The names that complete the last word of a list, such as erm,tr."""
    before, comma, last = typed.rpartition(",")
    return [CompletionItem(f"{before}{comma}{name}") for name in names if name.startswith(last)]

"""Published weights by name, LIBRARY:NAME: a name stands for a file and for what its library says of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.registry import Registry, hooks

if TYPE_CHECKING:
    from rbtools.execution.run import Run

LIBRARIES = Registry("library of weights", {}, group="named-weights", closed=True)


class NamedWeights(NamedTuple):
    """A weight file with what its library says of it: `arch` has the normalisation and the preprocessing.

    source: the name, with the revision or the set of weights.
    """

    path: str
    arch: dict[str, Any]
    source: str


def is_name(text: str) -> bool:
    """Whether a `--checkpoint` is a name of published weights rather than a file."""
    return text.partition(":")[0] in LIBRARIES and ":" in text and not Path(text).is_file()


def find(text: str, run: Run) -> NamedWeights:
    """The weights of that name. Nothing is fetched without `run.selection.download`.

    Raises RbError where the library is not installed, has no such weights, or the file is not there, and for
    weights in another format than safetensors on the Hub.
    """
    library, _, name = text.partition(":")
    return LIBRARIES.load(library)(name, run)


def beside(path: str) -> dict[str, Any]:
    """The architecture that a configuration beside a file describes; empty without one. Raises RbError."""
    return {key: value for read in hooks("configurations") for key, value in read(path).items()}

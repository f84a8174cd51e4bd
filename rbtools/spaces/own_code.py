"""Networks that are only known by name and cannot be listed, and networks built by the user's own code."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, ClassVar

from rbtools.errors import RbError, shown
from rbtools.plain_files import LARGEST_LIST, read_plain


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """A space of networks that cannot be listed. A network is built to count its parameters."""

    name: str
    example: str
    version: ClassVar[int] = 1
    sizes: ClassVar[tuple[str, ...]] = ()

    def __len__(self) -> int:
        raise self._no_list()

    def indices(self, unique: bool = False) -> Iterable[int]:
        raise self._no_list()

    def arch(self, index: int, **_: object) -> dict[str, Any]:
        raise self._no_list()

    def find(self, text: str) -> int:
        raise self._no_list()

    def neighbours(self, index: int) -> list[int]:
        raise self._no_list()

    def _no_list(self) -> RbError:
        return RbError(f"The space {self.name} cannot be listed. Name a network, such as {self.example}.")

    def describe(self, arch: Mapping[str, Any], classes: int, shape: Iterable[int]) -> dict[str, Any]:
        if not isinstance(arch.get("name"), str):
            raise RbError(
                f"The record's arch names the space {self.name} but no model."
                f" Expected a 'name', as in {self.example}."
            )
        return dict(arch)


def python() -> Foreign:
    return Foreign(name="python", example="python:mymodels:make_network")


def checkpoint() -> Foreign:
    """Programs (TorchScript, torch.export, ONNX), whose checkpoint contains the network."""
    return Foreign(name="checkpoint", example="torchscript")


def answers() -> Foreign:
    """Models without gradients (`rbtools.queries`), which are reached by a command or an address."""
    return Foreign(name="answers", example="a model given by --model-cmd")


def code_digest(name: str) -> str:
    """Returns a digest of the source file of MODULE in MODULE:FUNCTION. MODULE is not imported.

    Modules that MODULE imports are not included. Raises RbError if MODULE does not exist.
    """
    module, colon, function = name.partition(":")
    if not (colon and module and function):
        raise RbError(
            f"The architecture python:{name} does not name a function. Expected python:MODULE:FUNCTION."
        )
    file = _source_file(module)
    if file is None:
        raise no_module(module)
    return hashlib.sha256(read_plain(file, LARGEST_LIST)).hexdigest()[:16]


def own_options(name: str) -> dict[str, str | int | float | bool]:
    """Returns the parameters in MODULE:FUNCTION:NAME=VALUE:NAME=VALUE.

    A value is a number, true, false, or otherwise a string. Raises RbError if a part is not NAME=VALUE, or if
    a name occurs twice.
    """
    options: dict[str, str | int | float | bool] = {}
    for part in name.split(":")[2:]:
        key, equals, value = part.partition("=")
        if not (equals and key.isidentifier()) or key in options:
            raise RbError(
                f"python:{shown(name)} has the part '{shown(part)}'. Expected python:MODULE:FUNCTION, then"
                " parameters of the function, each once: python:MODULE:FUNCTION:width=16:depth=3."
            )
        options[key] = _plain_value(value)
    return options


def _plain_value(text: str) -> str | int | float | bool:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            value = kind(text)
            return value if abs(value) < 1 << 63 else text  # larger integers do not fit into a record
    return text


def no_module(name: str) -> RbError:
    """Returns the error for a missing module, with a hint if the user gave a file name."""
    meant = name.removesuffix(".py").replace("/", ".")
    what = f"Did you mean '{meant}'?" if meant != name else "Check the name."
    return RbError(f"There is no Python module {name} in {Path.cwd()}, and none is installed. {what}")


def _source_file(module: str) -> Path | None:
    PathFinder.invalidate_caches()
    places: list[str] | None = [*sys.path, str(Path.cwd())]
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:depth]), places)
        if spec is None:
            return None
        places = None if spec.submodule_search_locations is None else list(spec.submodule_search_locations)
        if depth < len(parts) and places is None:
            return None
    return Path(spec.origin) if spec is not None and spec.origin else None

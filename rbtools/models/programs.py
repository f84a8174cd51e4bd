"""Checkpoints that contain the graph or the code of their network: TorchScript, torch.export and ONNX files.

To add a format, add one file with a subclass of `ProgramFormat` and one line in `models.PROGRAMS`.
"""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.models import PROGRAMS, Shape
from rbtools.plain_files import opened, plain

if TYPE_CHECKING:
    from rbtools.models.normalising import Choices, NormalizationHints

ZIP = b"PK\x03\x04"


class Program(nn.Module):
    """A loaded program. It has only one mode, because torch.export does not support `train` and `eval`."""

    def __init__(self, program: nn.Module) -> None:
        super().__init__()
        self.program = program

    def train(self, mode: bool = True) -> Program:
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.program(images)


class Loaded(NamedTuple):
    """A loaded program, further fields of its architecture, facts about it, and its possible normalisations
    (None means those of `normalising.of_program`)."""

    network: nn.Module
    arch: Mapping[str, Any] = {}
    facts: Mapping[str, Any] = {}
    choices: Choices | None = None


class ProgramFormat:
    """A format of programs. `name` is the name of the architectures, and `what` describes a file. If loading
    a file can run code in it, `runs_code` is true, and the user must allow it first."""

    name: ClassVar[str]
    what: ClassVar[str]
    runs_code: ClassVar[bool] = True

    @staticmethod
    def holds(head: bytes, names: Sequence[str]) -> bool:
        """Whether a file has this format, by its first bytes and by the names in its zip archive, if any."""
        raise NotImplementedError

    @staticmethod
    def read(path: Path, arch: Mapping[str, Any], shape: Shape, hints: NormalizationHints) -> Loaded:
        """Load a file for images of a shape. `arch` has the fields from a record or from the user. Any
        exception except RbError means that the file is damaged."""
        raise NotImplementedError


class TorchExport(ProgramFormat):
    name, what = "torch.export", "a program from torch.export"

    @staticmethod
    def holds(head: bytes, names: Sequence[str]) -> bool:
        return any(name.endswith(("archive_format", "serialized_exported_program.json")) for name in names)

    @staticmethod
    def read(path: Path, arch: Mapping[str, Any], shape: Shape, hints: NormalizationHints) -> Loaded:
        with opened(path) as file:  # given a path, torch warns of other file extensions
            return Loaded(Program(torch.export.load(file).module()))


class TorchScript(ProgramFormat):
    name, what = "torchscript", "a TorchScript program"

    @staticmethod
    def holds(head: bytes, names: Sequence[str]) -> bool:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in names)

    @staticmethod
    def read(path: Path, arch: Mapping[str, Any], shape: Shape, hints: NormalizationHints) -> Loaded:
        return Loaded(Program(torch.jit.load(str(plain(path)), map_location="cpu").eval()))


def format_of_file(path: Path, allow_code: bool) -> type[ProgramFormat] | None:
    """The program format of a file that may be loaded, or None for other files."""
    try:
        with opened(path) as file:
            head = file.read(64)
        names: list[str] = []
        if allow_code and head.startswith(ZIP):
            with zipfile.ZipFile(plain(path)) as archive:
                names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return None
    form = format_of(head, names)
    return form if form is None or allow_code or not form.runs_code else None


def format_of(head: bytes, names: Sequence[str]) -> type[ProgramFormat] | None:
    return next((form for _, form in PROGRAMS.loaded() if form.holds(head, names)), None)


def refusal(path: Path, form: type[ProgramFormat]) -> RbError:
    return RbError(
        f"The checkpoint {path} is {form.what}, and loading it could run code. If you trust it, add"
        " --allow-code; otherwise save only the weights: torch.save(model.state_dict(), FILE)."
    )


def load(
    path: Path,
    form: type[ProgramFormat],
    arch: Mapping[str, Any],
    shape: Shape,
    hints: NormalizationHints,
) -> Loaded:
    """Load a program. Raises RbError if this fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but its files are still in use
            return form.read(path, arch, shape, hints)
    except RbError:
        raise
    except Exception as error:  # the program's loader may raise anything
        first, *_ = str(error).split("\n")
        raise RbError(
            f"The checkpoint {path} looks like {form.what} but cannot be loaded ({type(error).__name__}:"
            f" {first[:160]}). The file may be incomplete, or saved by a different version."
        ) from None


def classes_of(program: nn.Module, shape: Shape, path: Path) -> int:
    """Returns the number of logits. Raises RbError if the program fails or returns something else."""
    try:
        with torch.no_grad():
            logits = program(torch.zeros(2, *shape))
    except Exception as error:
        *_, cause = str(error).strip().split("\n")  # the lines before it are TorchScript's traceback
        raise RbError(
            f"The program {path} fails on two images of {'x'.join(map(str, shape))}"
            f" ({type(error).__name__}: {cause.strip()[:160]}). It may have been saved for a different image"
            " size, number of channels or batch size. With torch.export, dynamic_shapes allows any batch"
            " size."
        ) from None
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 2:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
        raise RbError(f"The program {path} returns {what} for two images. Expected logits (2, classes).")
    return logits.shape[1]


def from_arch(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """Raises RbError in every case, because the network exists only in the file."""
    raise RbError(
        f"The architecture checkpoint:{arch.get('name')} is a program inside its checkpoint: it can be"
        " evaluated, but not trained."
    )

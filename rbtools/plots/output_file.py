"""The output file of a command of rb-plot."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.cli import shared
from rbtools.cli.sink import where_param
from rbtools.errors import UsageError
from rbtools.registry import REQUIRED, param

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def output_param() -> Any:
    text = "The file to write; its extension determines the format."
    return param(REQUIRED, text, metavar="FILE", flags=("--output", "-o"))


@dataclass(frozen=True, kw_only=True)
class PlotOptions:
    output: str = output_param()
    where: str | None = where_param()
    title: str | None = param(None, "Title of the page.  [default: network and data set]")


def save(drawn: Figure | str, file: Path, ending: str) -> None:
    from rbtools.plots.base import encode
    from rbtools.store.files import user_output

    data = encode(drawn, ending)
    with user_output(file, hint="Name another file.") as target:
        target.write(data)


def ending_of(file: str, endings: tuple[str, ...]) -> str:
    """The file extension. Raises UsageError if the plot does not support it, or if the file is a folder."""
    from rbtools.store.files import check_folder_of

    ending = Path(file).suffix.lower().removeprefix(".")
    if ending not in endings:
        problem = f"ends in '.{ending}'" if ending else "has no ending"
        raise UsageError(f"-o {file} {problem}. Expected a file name that ends in .{', .'.join(endings)}.")
    check_folder_of(Path(file))
    if os.path.isdir(file):
        raise UsageError(f"-o {file} is a folder. Expected the name of a file.")
    return ending


def refuse_to_overwrite(source: shared.RecordSource, file: str) -> None:
    for name in source.files:
        if os.path.exists(file) and os.path.exists(name) and os.path.samefile(name, file):
            raise UsageError(f"{name} is both read and written. Choose another output file.")

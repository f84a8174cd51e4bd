"""rb-arch: writes architectures as records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rbtools import units
from rbtools.cli import calls, options, shared, streams
from rbtools.cli.source import RecordSource
from rbtools.errors import RbError, UsageError, of_network
from rbtools.execution.run import Run, Scaling, Selection
from rbtools.records import SCHEMA, dumps
from rbtools.registry import OWN, param, rare_param
from rbtools.spaces import SPACES, Space, sized
from rbtools.spaces.choose import CLASSES, SHAPE, holding, records, these


@dataclass(frozen=True, kw_only=True)
class ArchOptions:
    files: tuple[str, ...] = param((), "", metavar="[FILE]...", positional=True)
    checkpoints: tuple[str, ...] = param(
        (),
        "Write a record for each of these files of weights. The network is recognised by the names and shapes"
        " of the tensors in the file.",
        metavar="FILE",
        flags=("--from-checkpoint",),
    )
    arch: str | None = param(
        None,
        "Architectures by name: resnet18, nb201-13714, torchvision:NAME, timm:NAME, repo:OWNER/NAME,"
        " python:MODULE:FUNCTION (counting its parameters needs --allow-code), or fcnn:relu/tanh+skip. With"
        " --from-checkpoint, the name of the network in the files.",
        metavar="LIST",
        group="Model",
    )
    space: str = param("nasbench201", "Search space of the architectures.", choices=tuple(SPACES))
    unique: bool = param(
        False, "Write one architecture for each set of identical networks (6466).", flags=("--unique",)
    )
    index: str | None = param(
        None, "Indices, such as 13714 or 0-9,50; records are written in this order.", metavar="LIST"
    )
    string: str | None = param(
        None, "The string of one cell: '|nor_conv_3x3~0|+|...'.", metavar="TEXT", flags=("--str",)
    )
    neighbours: str | None = param(
        None,
        "Write all architectures that differ from ARCH (an index, a name or a cell string) in one edge.",
        metavar="ARCH",
    )
    dataset: str | None = param(
        None, "Count parameters and operations for this data set.", metavar="NAME", group="Data"
    )
    data_dir: str | None = rare_param(
        None, "Folder of the data sets.", metavar="DIR", variable="RB_DATA", group="Data"
    )


@dataclass(frozen=True, kw_only=True)
class ArchSizes:
    channels: int | None = param(None, "Channels in the first stage.  [default: 16]", bounds="[1, inf)")
    cells: int | None = param(None, "Cells in each of the three stages.  [default: 5]", bounds="[1, inf)")
    width: int | None = param(
        None, "Neurons or channels in every layer of fcnn and rescnn.  [default: 64]", bounds="[1, inf)"
    )
    depth: int | None = param(
        None, "Layers of fcnn and rescnn, including the output layer.  [default: 4]", bounds="[2, inf)"
    )


@dataclass(frozen=True, kw_only=True)
class ArchChoice:
    where: str | None = param(
        None,
        "Write only architectures that meet this condition, for example 'kernel_params == 18'.",
        metavar="EXPR",
    )
    sample: int | None = param(None, "Write N random architectures.", bounds="[1, inf)", metavar="N")
    seed: int = param(0, "Seed of --sample.", bounds="[0, inf)", group="Running")


@shared.command()
@shared.takes("typed", ArchOptions)
@shared.takes("choice", ArchChoice, make=dict)
@shared.takes("sizes", ArchSizes, make=dict)
@shared.takes("normalize", RecordSource, "normalize", make=lambda normalize: normalize)
@shared.takes("work", Selection, "member", "allow_code", make=dict)
@shared.takes("typed_scaling", Scaling, make=dict)
@options.screen_options
def main(
    typed: ArchOptions,
    choice: dict[str, Any],
    sizes: dict[str, int | None],
    normalize: str | None,
    work: dict[str, Any],
    typed_scaling: dict[str, Any],
    screen: shared.Terminal,
) -> int:
    """Write architectures as records, ordered by their published indices.

    Without options, the command writes all 15,625 architectures of NAS-Bench-201. The numbers of parameters
    and multiply-adds ("params", "macs") are for 32x32 images with three channels and for ten classes; with
    --dataset, they are for the images and classes of the data set. With --from-checkpoint, the command writes
    a record for each file of weights. All tools that evaluate models accept these records.

    \b
    Examples:
      rb-arch --unique | wc -l
      rb-arch --sample 16 --where 'kernel_params == 18 and none == 0'
      rb-arch --neighbours 13714 --cells 1 --dataset digits
      rb-arch --arch resnet18,torchvision:resnet50
      rb-arch --space fcnn --depth 3 --width 256 --where 'skips == 1' --sample 20 --dataset digits
      rb-arch --from-checkpoint model.pt --normalize cifar10 | rb-attack fgsm --dataset imagefolder:photos
    """
    scaled = options.scaling(screen, **typed_scaling)
    if scaled and typed.dataset is None:
        raise UsageError(f"{_given(typed_scaling)} describes the images of a data set. Add --dataset NAME.")
    if typed.checkpoints:
        recognised = _of_files(typed, normalize, {**scaled, **work}, screen)
        return _write(holding(recognised, choice["where"]), screen)
    program = _is_program(typed.dataset) or any(map(_is_program, (typed.arch or "").split(",")))
    _refuse_without_files(typed.files, FOR_FILES if program else (*FOR_FILES, "allow_code"))
    if sum(option is not None for option in (typed.arch, typed.index, typed.string, typed.neighbours)) > 1:
        raise UsageError(
            "More than one of --arch, --index, --str and --neighbours is given. Choose one of them."
        )
    about: dict[str, Any] = {"classes": CLASSES, "shape": SHAPE}
    extra: dict[str, Any] = {}
    if typed.dataset is not None:
        from rbtools import datasets

        how = {"allow_code": work["allow_code"], "preprocessing": scaled.get("preprocessing")}
        source = datasets.source(typed.dataset, typed.data_dir, **how)
        described, extra = source.describe(), {"dataset": source.name}
        about = {"classes": described.classes, "shape": described.shape}
        if source.preprocessing is not None:
            extra["preprocessing"] = str(source.preprocessing)
    if typed.arch is not None:
        named = _named(typed.arch, sizes, about, extra, work["allow_code"])
        return _write(these(named, **choice, warn=screen.warn), screen)
    sized_space = sized(typed.space, **sizes)
    numbers = _numbers(sized_space, typed.index, typed.string, typed.neighbours)
    return _write(
        records(sized_space, numbers, about, extra, unique=typed.unique, **choice, warn=screen.warn), screen
    )


def _of_files(
    typed: ArchOptions, normalize: str | None, settings: dict[str, Any], screen: shared.Terminal
) -> Iterator[dict[str, Any]]:
    """A record for each file, in the given order, with an `error` if the network is not recognised. Raises
    UsageError for a path that is not a file, before any file is read."""
    from rbtools.inputs import checkpoints

    if option := _given(NOT_FOR_FILES):
        raise UsageError(f"{option} selects from a space, but --from-checkpoint reads files. Leave one out.")
    settings |= {"dataset": typed.dataset, "data_dir": typed.data_dir}
    run = Run.of(tool=screen.tool, notify=screen.once, **settings)
    hints = checkpoints.CheckpointHints(typed.arch, normalize)
    shared.checked(hints, run)
    paths = [shared.file_path(name) for name in (*typed.checkpoints, *typed.files)]

    def file_records() -> Iterator[dict[str, Any]]:
        for path in paths:
            try:
                yield checkpoints.record_of(path, hints, run, with_data=run.selection.dataset is not None)
            except UsageError:
                raise
            except RbError as wrong:
                screen.error(str(wrong))
                error = {"tool": screen.tool, "message": str(wrong)}
                yield {"schema": SCHEMA, "checkpoint_file": path, "error": error}

    return file_records()


FOR_FILES = ("normalize", "member")  # and --allow-code, which the user's own data sets need too
NOT_FOR_FILES = (
    *("space", "unique", "index", "string", "neighbours", "sample", "seed"),
    *("channels", "cells", "width", "depth"),
)


def _given(names: Iterable[str]) -> str | None:
    given = calls.current().given
    return next((given[name] for name in names if name in given), None)


def _is_program(name: str | None) -> bool:
    return name is not None and name.strip().startswith(OWN)


def _refuse_without_files(files: tuple[str, ...], options: Sequence[str]) -> None:
    if files:
        raise UsageError(
            f"rb-arch reads no records, so {files[0]} has no effect. Did you mean --from-checkpoint?"
        )
    option = _given(options)
    if option is not None:
        raise UsageError(f"{option} describes a file of weights. Add --from-checkpoint FILE.")


def _named(
    text: str, sizes: dict[str, int | None], about: dict[str, Any], extra: dict[str, Any], allow_code: bool
) -> Iterator[dict[str, Any]]:
    from rbtools import spaces
    from rbtools.inputs.named_networks import named_arch

    given = {key: value for key, value in sizes.items() if value is not None}
    for word in filter(None, (part.strip() for part in text.split(","))):
        fields = named_arch(word)
        sized(fields["space"], **given)  # raises an error for sizes that the space does not have
        described = spaces.describe({**fields, **given}, **about)
        if fields["space"] == "python" and allow_code:
            described |= _counted(described, **about)
        yield {"schema": SCHEMA, "arch": described, **extra}


def _counted(arch: dict[str, Any], classes: int, shape: tuple[int, int, int]) -> dict[str, int]:
    """Count the parameters and operations of the user's network. Raises RbError if it fails on an image."""
    import torch

    from rbtools.models import build
    from rbtools.models.meta import multiply_adds, parameters

    network = build(arch, classes=classes, shape=shape, allow_code=True).eval()
    try:
        macs = multiply_adds(network, torch.zeros(1, *shape))
    except (Exception, SystemExit) as wrong:  # the user's network may raise anything
        raise RbError(of_network(wrong) or f"python:{arch['name']} raised {wrong!r}.") from wrong
    return {"params": parameters(network), "macs": macs}


def _numbers(
    space: Space, index: str | None, string: str | None, neighbours: str | None
) -> Iterable[int] | None:
    if index is not None:
        return [space.find(str(number)) for number in _whole_numbers(index)]
    if string is not None:
        return [space.find(string)]
    return None if neighbours is None else space.neighbours(space.find(neighbours))


def _whole_numbers(text: str) -> list[int]:
    numbers = units.number_list(text, "--index")
    wrong = [value for value in numbers if value != int(value)]
    if wrong:
        raise UsageError(f"--index contains {wrong[0]:g}. Expected whole numbers, such as 13714 or 0-9,50.")
    return [int(value) for value in numbers]


def _write(records: Iterator[dict[str, Any]], screen: shared.Terminal) -> int:
    count = failed = 0
    with contextlib.closing(streams.of_command().writer()) as output:
        for count, record in enumerate(records, start=1):  # noqa: B007 - counted for the message below
            failed += "error" in record
            output.line(dumps(record))
    if count == 0:
        screen.say("no architecture matches.")
    screen.detail(f"{count} architecture{'s' * (count != 1)}.")
    return shared.FAILED if failed else shared.DONE


if __name__ == "__main__":
    main()

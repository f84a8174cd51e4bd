"""rb-corrupt: measures the accuracy of each model under common corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools import units
from rbtools.cli import options, parse_units, shared, streams
from rbtools.corruptions import CORRUPTIONS
from rbtools.errors import RbError, UsageError
from rbtools.registry import param, rare_param


def severity_param() -> Any:
    return param("1-5", "Severities from 1 to 5, such as 3, 1-5 or 1,3,5.", metavar="LIST")


@dataclass(frozen=True, kw_only=True)
class CorruptionOptions:
    severity: str = severity_param()
    archive: str | None = param(
        None,
        "Read the corrupted images from this archive, such as CIFAR-10-C, with files NAME.npy and"
        " labels.npy.",
        metavar="DIR",
        flags=("--from",),
    )
    detail: bool = options.detail_param()
    reference: str | None = rare_param(
        None,
        "File with a record of rb-corrupt all; adds corrupt.mce and corrupt.relative_mce, relative to the"
        " errors in this record.",
        metavar="FILE",
    )
    write: str | None = param(
        None,
        "Write a corrupted copy of the data set in the layout that --from reads, and evaluate nothing.",
        metavar="DIR",
    )
    show: str | None = param(
        None, "Draw one image with every corruption and severity, and evaluate nothing.", metavar="FILE.png"
    )


@shared.command(choose=CORRUPTIONS, many=True)
@shared.takes("typed", CorruptionOptions)
@options.source_options
@options.takes_run(without=("precision", "prepare", *options.NO_GRADIENTS))
def main(
    corruptions: list[str],
    params: dict[str, Any],
    typed: CorruptionOptions,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> shared.Status:
    """Measure each model's accuracy under common corruptions.

    The argument is one corruption, a list separated by commas, or all, which means the fifteen corruptions of
    CIFAR-10-C and ImageNet-C. Four extra corruptions of the benchmark, which are for validation, run only if
    they are named. The tool adds corrupt.NAME.SEVERITY to "metrics". It also adds corrupt.NAME.mean if all
    five severities are evaluated, and corrupt.mean if all fifteen corruptions are evaluated.

    \b
    Examples:
      rb-corrupt gaussian_noise,contrast --severity 1-5 trained.jsonl
      rb-corrupt all --severity 3 --checkpoint model.pt --normalize cifar10 --dataset imagefolder:photos
      rb-corrupt fog,contrast --dataset digits --write digits-c --show digits-c.png
      rb-corrupt fog,contrast --from digits-c trained.jsonl
    """
    from rbtools.evaluation.under_corruption import corrupted
    from rbtools.jobs.corruption_archive import ArchiveJob

    severities = parse_units.severities(typed.severity)
    chosen = tuple(shared.build(CORRUPTIONS, name, params) for name in corruptions)
    if typed.show is not None:
        from rbtools.store.files import check_folder_of

        check_folder_of(Path(typed.show))
    if typed.write is not None or typed.show is not None:
        _refuse_to_evaluate(source, {"--from": typed.archive, "--reference": typed.reference})
        return _made(chosen, severities, typed.write, typed.show, work)
    base = None if typed.reference is None else _reference(typed.reference, corruptions, severities)
    if typed.archive is None:
        return shared.evaluate(source, work, corrupted(chosen, severities, base, typed.detail))
    folder = _archive(typed.archive, corruptions, params)
    work = work.changed(archive=str(folder))
    return shared.filter_models(
        source, work, ArchiveJob(folder, tuple(corruptions), severities, base, typed.detail)
    )


def _made(
    chosen: Sequence[Any],
    severities: tuple[int, ...],
    write: str | None,
    show: str | None,
    work: shared.CommandContext,
) -> shared.Status:
    """Write the corrupted copy (--write), and draw one image with all corruptions (--show)."""
    if write is not None and severities != units.SEVERITIES:
        raise UsageError(
            "--write creates an archive, which always has all five severities. Leave out --severity."
        )
    from rbtools.jobs import corrupted_images

    if show is not None:
        work.screen.say(corrupted_images.draw(chosen, severities, Path(show), work.run))
    if write is not None:
        for line in corrupted_images.write(chosen, Path(write), work.run):
            work.screen.clear()
            work.screen.say(line)
    return shared.DONE


def _refuse_to_evaluate(source: shared.RecordSource, others: dict[str, str | None]) -> None:
    given = {"--checkpoint": source.checkpoint, "FILE": source.files, **others}
    for flag, value in given.items():
        if value:
            raise UsageError(f"--write and --show evaluate nothing, but {flag} is given. Leave one out.")


def _archive(folder: str, names: Sequence[str], params: dict[str, Any]) -> Path:
    """The folder of the archive. Raises UsageError if the file of a corruption is missing in the archive."""
    from rbtools.jobs import corruption_archive

    if params:
        flag = "--" + next(iter(params)).replace("_", "-")
        raise UsageError(
            f"{flag} changes how images are corrupted, but --from reads corrupted images. Leave one out."
        )
    try:
        corruption_archive.files(Path(folder), names)
    except RbError as wrong:
        raise UsageError(f"--from: {wrong}") from None
    return Path(folder).absolute()


def _reference(file: str, names: Sequence[str], severities: tuple[int, ...]) -> Any:
    """The reference model of --reference; mCE divides by the errors of this model."""
    from rbtools.scoring import corruptions

    if severities != units.SEVERITIES or not set(CORRUPTIONS.all) <= set(names):
        raise UsageError("--reference (mCE) needs all fifteen corruptions at all severities: rb-corrupt all.")
    try:
        return corruptions.reference(streams.of_command().one_record(file, "compare with"), CORRUPTIONS.all)
    except RbError as wrong:
        raise UsageError(f"--reference: {wrong}") from None


if __name__ == "__main__":
    main()

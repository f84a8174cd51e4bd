"""rb-plot: figures and pages from records."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rbtools import parse_units
from rbtools.cli import shared, streams
from rbtools.cli.sink import Sink, counted, where_option
from rbtools.cli.sink import names as names_of
from rbtools.cli.source import name_of
from rbtools.commands.corrupt import severity_option
from rbtools.errors import RbError, UsageError
from rbtools.plots import PLOTS, Plot
from rbtools.scoring import plotted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_output_option = click.option(
    "--output", "-o", required=True, metavar="FILE", help="The file to write; its ending is the format."
)


@shared.command(choose=PLOTS)
@_output_option
@where_option
@shared.merging_sink_options
@shared.screen_options
def main(
    plot: str,
    params: dict[str, Any],
    output: str,
    where: str | None,
    source: shared.RecordSource,
    screen: shared.Terminal,
) -> int:
    """Draw records: a figure as PNG, SVG or PDF, by the file's ending.

    Reads all records before it draws. The same records make the same file, to the byte.

    \b
    Examples:
      rb-plot hist --metric acc -o accuracy.png results.jsonl
      rb-plot hist --metric 'fgsm.*' --width 3.3 -o fgsm.pdf results.jsonl
      rb-plot scatter --x acc --y pgd20.8 --pareto -o front.svg results.jsonl
      rb-plot box --where 'kernel_params > 9' -o attacks.png results.jsonl
    """
    chosen: Plot = shared.build(PLOTS, plot, params)
    needs_no_file = isinstance(streams.of_command(), streams.MemoryStreams) and not output
    ending = None if needs_no_file else _ending(output, chosen.endings)
    _refuse_to_overwrite(source, output)
    source = dataclasses.replace(source, adopt=getattr(chosen, "adopt", None))
    with shared.opened_output(source, screen) as stream:
        sink = Sink(source, screen, stream, where)
        records = sink.records()
        if records:
            drawn = chosen.draw(records, plotted)
            streams.of_command().keep(drawn)
            if ending is not None:
                _save(drawn, Path(output), ending)
                what = "record" if "arch" in records[0] else "correlation"
                screen.say(f"{output} shows {len(records):,} {what}{'s' * (len(records) != 1)}.")
        sink.tell()
        nothing = bool(sink.came) and not records
        if nothing:  # an error: the caller expects the file
            screen.error(f"there is nothing to draw: {output} was not written.")
        return shared.FAILED if sink.bad or nothing else shared.DONE


@shared.command()
@click.argument("names", default="all", metavar="[NAME,...]")
@_output_option
@severity_option
@click.option("--width", default=6.5, help="Width of the figure in inches.")
@click.option("--title", default=None, help="Title of the figure.  [default: what it shows]")
@shared.image_options
def corruptions(
    names: str, output: str, severity: str, width: float, title: str | None, work: shared.CommandContext
) -> int:
    """Draw one image of a data set under corruptions, one, several with commas, or all.

    The image is the first that rb-corrupt evaluates, and is corrupted in the same way. No records are read.

    \b
    Examples:
      rb-plot corruptions fog,contrast --dataset digits -o corruptions.png
    """
    from rbtools.corruptions import CORRUPTIONS
    from rbtools.jobs import corrupted_images
    from rbtools.plots.base import ENDINGS
    from rbtools.plots.sheet import ContactSheet

    ending = _ending(output, ENDINGS)
    listed = list(CORRUPTIONS.all) if names == "all" else names_of(names, "The list of corruptions")
    chosen = [shared.build(CORRUPTIONS, name, {}) for name in listed]
    severities = parse_units.severities(severity)
    plot = ContactSheet(width=width, title=title)
    sheet = corrupted_images.corrupted_images(chosen, severities, work.run)
    work.screen.clear()
    _save(plot.of(sheet.caption, sheet.clean, sheet.rows, severities), Path(output), ending)
    work.screen.say(f"{output} shows {sheet.caption}, under {counted(len(chosen), 'corruption')}.")
    return shared.DONE


@shared.command()
@_output_option
@where_option
@click.option(
    "--adv",
    default=None,
    metavar="FILE.adv",
    help="Show images of rb-attack --save-adv FILE.adv, and judge them.",
)
@click.option(
    "--images",
    default=None,
    type=click.IntRange(0, 100),
    help="How many of the worst images to show; without --adv those of a short PGD on --n images."
    "  [default: 8 with --adv, else 0]",
)
@click.option(
    "--checkpoint",
    default=None,
    metavar="FILE",
    help="The file of the record's weights, where the store has them not; their hash is compared.",
)
@click.option("--title", default=None, help="Title of the page.  [default: network and data set]")
@shared.merging_sink_options
@shared.verify_options
def report(
    output: str,
    where: str | None,
    adv: str | None,
    images: int | None,
    checkpoint: str | None,
    title: str | None,
    source: shared.RecordSource,
    work: shared.CommandContext,
) -> int:
    """Write a report on one model, for a paper's appendix or a review: HTML in one file.

    It has all results with their intervals and settings, curves over eps, radius and severity, the worst
    adversarial images with their differences, a checklist (the five tests of rb-attack check, AutoAttack's
    flags, whether the network's verdicts repeat: five of each image, and their majority), the row of a LaTeX
    table, the command lines that remake the results, and BibTeX of the methods.

    \b
    Examples:
      rb-plot report -o report.html results.jsonl
      rb-plot report --images 8 --n 50 -o report.html --where 'train.method == "erm"' results.jsonl
    """
    from rbtools.inputs import checkpoints
    from rbtools.pages import report_command

    _ending(output, ("html", "htm"))
    _refuse_to_overwrite(source, output)
    with shared.opened_output(source, work.screen) as stream:
        sink = Sink(source, work.screen, stream, where)
        records = sink.records()
        sink.tell()
        if not sink.came:
            return shared.DONE  # --allow-empty
        if not records:
            work.screen.error(f"there is no record to report on: {output} was not written.")
            return shared.FAILED
        try:
            record = report_command.one_model(records)
            if checkpoint is not None:
                record = checkpoints.with_file(record, shared.file_path(checkpoint), work.run)
            count = (8 if adv is not None else 0) if images is None else images
            text = report_command.report(record, adv, count, title, work.run)
        except UsageError:
            raise
        except RbError as wrong:
            work.screen.error(f"{wrong} {output} was not written.")
            return shared.FAILED
        _save(text, Path(output), "html")
        work.screen.clear()
        work.screen.say(f"{output} reports on {name_of(record)}.")
        return shared.FAILED if sink.bad else shared.DONE


main.add_command(report, "report")  # type: ignore[attr-defined]
main.add_command(corruptions, "corruptions")  # type: ignore[attr-defined]


def _save(drawn: Figure | str, file: Path, ending: str) -> None:
    """Write the file whole."""
    from rbtools.plots.base import encode
    from rbtools.store.files import user_output

    data = encode(drawn, ending)
    with user_output(file, hint="Name another file.") as target:
        target.write(data)


def _ending(file: str, endings: tuple[str, ...]) -> str:
    """The ending of the file's name. Raises UsageError if the plot has no such format, or the path is a
    folder."""
    from rbtools.store.files import check_folder_of

    ending = Path(file).suffix.lower().removeprefix(".")
    if ending not in endings:
        problem = f"ends in '.{ending}'" if ending else "has no ending"
        raise UsageError(f"-o {file} {problem}. Expected a file name that ends in .{', .'.join(endings)}.")
    check_folder_of(Path(file))
    if os.path.isdir(file):
        raise UsageError(f"-o {file} is a folder. Expected the name of a file.")
    return ending


def _refuse_to_overwrite(source: shared.RecordSource, file: str) -> None:
    for name in source.files:
        if os.path.exists(file) and os.path.exists(name) and os.path.samefile(name, file):
            raise UsageError(f"{name} is both read and written. Write elsewhere.")


if __name__ == "__main__":
    main()

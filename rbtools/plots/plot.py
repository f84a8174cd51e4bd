"""rb-plot: figures and pages from records."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Any

import click

from rbtools import parse_units
from rbtools.cli import options, shared, streams
from rbtools.cli.sink import Sink, counted, where_option
from rbtools.cli.sink import names as names_of
from rbtools.commands.corrupt import severity_option
from rbtools.plots import PLOTS, Plot, details
from rbtools.plots.output_file import ending_of, output_option, refuse_to_overwrite, save
from rbtools.registry import Registry
from rbtools.store import Store


@shared.command(choose=PLOTS)
@output_option
@where_option
@options.store_option
@options.merging_sink_options
@options.screen_options
def main(
    plot: str,
    params: dict[str, Any],
    output: str,
    where: str | None,
    store: str,
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
    ending = None if needs_no_file else ending_of(output, chosen.endings)
    refuse_to_overwrite(source, output)
    source = dataclasses.replace(source, adopt=getattr(chosen, "adopt", None))
    with shared.opened_output(source, screen) as stream:
        sink = Sink(source, screen, stream, where)
        records = sink.records()
        if detail := getattr(chosen, "detail", ""):
            asked = params.get("metric")
            records = [details.fetched(record, asked, detail, Store(store)) for record in records]
        if records:
            drawn = chosen.draw(records)
            streams.of_command().keep(drawn)
            if ending is not None:
                save(drawn, Path(output), ending)
                what = "record" if "arch" in records[0] else "correlation"
                screen.say(f"{output} shows {len(records):,} {what}{'s' * (len(records) != 1)}.")
        sink.tell()
        nothing = bool(sink.came) and not records
        if nothing:  # an error, because the caller expects the file
            screen.error(f"there is nothing to draw: {output} was not written.")
        return shared.FAILED if sink.bad or nothing else shared.DONE


@shared.command()
@click.argument("names", default="all", metavar="[NAME,...]")
@output_option
@severity_option
@click.option("--width", default=6.5, help="Width of the figure in inches.")
@click.option("--title", default=None, help="Title of the figure.  [default: what it shows]")
@options.image_options
def corruptions(
    names: str, output: str, severity: str, width: float, title: str | None, work: shared.CommandContext
) -> int:
    """Draw one image of a data set under corruptions, one, several with commas, or all.

    The image is the first that rb-corrupt evaluates, and is corrupted in the same way. No records are read.

    Needs no record and no metric: only a data set.

    \b
    Examples:
      rb-plot corruptions fog,contrast --dataset digits -o corruptions.png
    """
    from rbtools.corruptions import CORRUPTIONS
    from rbtools.jobs import corrupted_images
    from rbtools.plots.base import ENDINGS
    from rbtools.plots.sheet import ContactSheet

    ending = ending_of(output, ENDINGS)
    listed = list(CORRUPTIONS.all) if names == "all" else names_of(names, "The list of corruptions")
    chosen = [shared.build(CORRUPTIONS, name, {}) for name in listed]
    severities = parse_units.severities(severity)
    plot = ContactSheet(width=width, title=title)
    sheet = corrupted_images.corrupted_images(chosen, severities, work.run)
    work.screen.clear()
    save(plot.of(sheet.caption, sheet.clean, sheet.rows, severities), Path(output), ending)
    work.screen.say(f"{output} shows {sheet.caption}, under {counted(len(chosen), 'corruption')}.")
    return shared.DONE


def _listed(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Print a line for each plot: the first sentence of its help, and the one that says what it needs."""
    if not value or ctx.resilient_parsing:
        return
    group = typing.cast(click.Group, ctx.command)
    names = group.list_commands(ctx)
    for name in names:
        command = group.get_command(ctx, name)
        first, *others = inspect.cleandoc(command.help or "" if command else "").split("\n\n")
        needs = [paragraph for paragraph in others if paragraph.startswith("Needs ")]
        shows = " ".join(first.split()).partition(". ")[0].removesuffix(".")
        click.echo(" ".join([f"{name:{max(map(len, names))}}  {shows}.", *needs]).replace("\n", " "))
    ctx.exit()


for _name, _command in Registry("command of rb-plot", {}, group="plot-commands", closed=True).loaded():
    main.add_command(_command, _name)  # type: ignore[attr-defined]
main.add_command(corruptions, "corruptions")  # type: ignore[attr-defined]
main.params.append(
    click.Option(
        ["--list"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_listed,
        help="Print a line for each plot, what it shows and what it needs, and exit.",
    )
)


if __name__ == "__main__":
    main()

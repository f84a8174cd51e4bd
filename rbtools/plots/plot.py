"""The command rb-plot: figures and pages from records."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rbtools.cli import options, parse_units, shared, streams
from rbtools.cli.sink import Sink
from rbtools.cli.sink import names as names_of
from rbtools.errors import UsageError
from rbtools.plots import PLOTS, Plot, details, words
from rbtools.plots.output_file import PlotOptions, ending_of, refuse_to_overwrite, save
from rbtools.plots.sheet import AdversarialSheet, ContactSheet
from rbtools.registry import Registry
from rbtools.store import Store


@shared.command(choose=PLOTS, lists="Print a line for each plot (what it shows and requires), and exit.")
@shared.takes("typed", PlotOptions, "output", "where")
@options.store_option
@options.merging_sink_options
@options.screen_options
def main(
    plot: str,
    params: dict[str, Any],
    typed: PlotOptions,
    store: str,
    source: shared.RecordSource,
    screen: shared.Terminal,
) -> int:
    """Draw records as a figure in PNG, SVG or PDF; the file extension determines the format.

    All records are read before the figure is drawn. The same records give the same file, byte for byte.

    \b
    Examples:
      rb-plot hist --metric acc -o accuracy.png results.jsonl
      rb-plot hist --metric 'fgsm.*' --width 3.3 -o fgsm.pdf results.jsonl
      rb-plot scatter --x acc --y pgd20.8 --pareto -o front.svg results.jsonl
      rb-plot box --where 'kernel_params > 9' -o attacks.png results.jsonl
    """
    chosen: Plot = shared.build(PLOTS, plot, params)
    output = typed.output
    ending = _ending(output, chosen.endings)
    refuse_to_overwrite(source, output)
    source = dataclasses.replace(source, adopt=getattr(chosen, "adopt", None))
    with shared.opened_output(source, screen) as stream:
        sink = Sink(source, screen, stream, typed.where)
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
                screen.say(f"{output} shows {words.counted(len(records), what)}.")
        sink.tell()
        nothing = bool(sink.came) and not records
        if nothing:  # an error, because the caller expects the file
            why = f"there are no records to draw, so {output} was not written."
            screen.error(why if output else f"no record meets the condition --where '{typed.where}'.")
        return shared.FAILED if sink.bad or nothing else shared.DONE


def _ending(output: str, endings: tuple[str, ...]) -> str | None:
    """The file extension, which must be in `endings`; None if a Python program needs no file."""
    needs_no_file = isinstance(streams.of_command(), streams.MemoryStreams) and not output
    return None if needs_no_file else ending_of(output, endings)


@shared.command()
@shared.takes("typed", ContactSheet)
@options.image_options
def corruptions(typed: ContactSheet, work: shared.CommandContext) -> int:
    """Draw one image of a data set under one corruption, under several corruptions separated by commas, or
    under all corruptions.

    The image is the first image that rb-corrupt evaluates, with the same corruption. No records are read.

    Needs a data set; records and metrics are not needed.

    \b
    Examples:
      rb-plot corruptions fog,contrast --dataset digits -o corruptions.png
    """
    from rbtools.corruptions import CORRUPTIONS
    from rbtools.jobs import corrupted_images

    ending = _ending(typed.output, typed.endings)
    listed = CORRUPTIONS.all if typed.names == "all" else names_of(typed.names, "The list of corruptions")
    chosen = [shared.build(CORRUPTIONS, name, {}) for name in listed]
    severities = parse_units.severities(typed.severity)
    sheet = corrupted_images.corrupted_images(chosen, severities, work.run)
    work.screen.clear()
    drawn = typed.of(sheet.clean, sheet.rows, severities)
    streams.of_command().keep(drawn)
    if ending is not None:
        save(drawn, Path(typed.output), ending)
    work.screen.say(
        f"{typed.output} shows {sheet.caption}, under {words.counted(len(chosen), 'corruption')}."
    )
    return shared.DONE


@shared.command()
@shared.takes("typed", AdversarialSheet)
@options.image_options
def adv(typed: AdversarialSheet, work: shared.CommandContext) -> int:
    """Draw images of rb-attack --save-adv, with the clean images in the first row and a row for each file.

    Of the images that are in all files, those that most attacks changed are shown. No records are read.

    Needs files of rb-attack --save-adv (or their folder) and their data set, but no records or metrics.

    \b
    Examples:
      rb-plot adv adv --dataset digits -o adv.png
    """
    from rbtools.jobs.adversarial_images import adversarial_images

    if not typed.saved:
        raise UsageError("No FILE is given. Expected a folder from rb-attack --save-adv, or files in it.")
    ending = _ending(typed.output, typed.endings)
    ids, rows = adversarial_images(typed.saved, typed.images, work.run)
    work.screen.clear()
    drawn = typed.of(ids, rows)
    streams.of_command().keep(drawn)
    if ending is not None:
        save(drawn, Path(typed.output), ending)
    work.screen.say(f"{typed.output} shows {words.counted(len(ids), 'image')} of {len(rows) - 1} files.")
    return shared.DONE


main.commands |= Registry("command of rb-plot", {}, group="plot-commands", closed=True).loaded()
main.commands |= {"corruptions": corruptions, "adv": adv}


if __name__ == "__main__":
    main()

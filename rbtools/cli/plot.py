"""rb-plot: figures and pages from records."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from rbtools.cli import shared
from rbtools.cli.output import Output
from rbtools.errors import UsageError
from rbtools.plots import PLOTS


@shared.command(choose=PLOTS)
@click.option("--output", "-o", required=True, metavar="FILE", help="The file to write; its ending says how.")
@shared.stream_options
@shared.screen_options
def main(plot: str, params: dict[str, Any], output: str, source: shared.Source, screen: shared.Screen) -> int:
    """Draw records: a figure as PNG, SVG or PDF, by the file's ending.

    Reads all records before it draws. The same records make the same file, to the byte.

    \b
    Examples:
      rb-plot hist --metric acc -o accuracy.png results.jsonl
      rb-plot hist --metric 'fgsm.*' --width 3.3 -o fgsm.pdf results.jsonl
    """
    chosen = shared.build(PLOTS, plot, params)
    ending = _ending(output, chosen.endings)
    _refuse_to_overwrite(source, output)
    with shared.opened_output(source, screen) as stream:
        records = _Records(source, screen, stream)
        held = list(records)
        if held:
            _write(chosen, held, Path(output), ending, screen)
        records.tell()
        return shared.FAILED if records.bad else shared.DONE


class _Records:
    """The records that can be drawn; lines that are none and failed records are counted."""

    def __init__(self, source: shared.Source, screen: shared.Screen, output: Output) -> None:
        self.source, self.screen, self.output = source, screen, output
        self.bad = self.failed = self.good = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in shared.read_all(self.source, self.screen, self.output):
            if line.record is None:
                self.bad += 1
            elif self.source.passes(line.record):
                self.failed += 1
            else:
                self.good += 1
                yield line.record

    def tell(self) -> None:
        """Say what was left out."""
        if self.good + self.failed + self.bad == 0:
            self.screen.say("no records came in.")
        for number, noun in ((self.failed, "failed record"), (self.bad, "bad line")):
            if number:
                self.screen.say(f"{number} {noun}{'s' * (number != 1)} left out.")


def _write(plot: Any, records: list[dict[str, Any]], file: Path, ending: str, screen: shared.Screen) -> None:
    from rbtools.plots.base import encode
    from rbtools.scoring import plotted
    from rbtools.store.files import written_whole

    data = encode(plot.draw(records, plotted), ending)
    with written_whole(file, hint="Name another file.") as target:
        target.write(data)
    screen.say(f"{file} shows {len(records):,} record{'s' * (len(records) != 1)}.")


def _ending(file: str, endings: tuple[str, ...]) -> str:
    """What the file's name ends in. Raises UsageError where the plot cannot be written so."""
    ending = Path(file).suffix.lower().removeprefix(".")
    if ending not in endings:
        found = f"ends in '.{ending}'" if ending else "has no ending"
        raise UsageError(f"-o {file} {found}. Expected a file name that ends in .{', .'.join(endings)}.")
    return ending


def _refuse_to_overwrite(source: shared.Source, file: str) -> None:
    if source.in_place:
        raise UsageError("--in-place is for tools that write records. rb-plot writes the file of -o.")
    for name in source.files:
        if os.path.exists(file) and os.path.exists(name) and os.path.samefile(name, file):
            raise UsageError(f"{name} is both read and written. Write elsewhere.")


if __name__ == "__main__":
    main()

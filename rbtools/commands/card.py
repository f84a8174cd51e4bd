"""rb-card: runs all measurements of one checkpoint within a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.cli import options, parse_units, shared, streams
from rbtools.cli.source import RecordSource, file_path, model_of
from rbtools.errors import RbError, UsageError
from rbtools.plain_files import opened
from rbtools.records import dumps
from rbtools.registry import param

if TYPE_CHECKING:
    from rbtools.cli.output import RecordWriter
    from rbtools.execution.run import Run
    from rbtools.jobs.model_card import CardRequest
    from rbtools.scoring.table import Table

Record = dict[str, Any]
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_ENDINGS = ("html", "htm", "md", "tex")


def _seconds(text: str) -> float | None:
    """The seconds in 90, 90s, 10m or 2h; None for `none` (no limit). Raises UsageError."""
    if text == "none":
        return None
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if parts is None or not 0 < float(parts[1]) * _UNITS[parts[2]] < 1e9:
        raise UsageError(f"--time is '{text}'. Expected a length of time, such as 90s, 10m, 2h, or none.")
    return float(parts[1]) * _UNITS[parts[2]]


@dataclass(frozen=True, kw_only=True)
class CardOptions:
    limit: str = param(
        "10m",
        "Time limit for each model: 90s, 10m, 2h, or none. A part is left out if there is no time for its"
        " first images; the first images of the cheapest part are always evaluated.",
        metavar="LENGTH",
        flags=("--time",),
    )
    purpose: str = param(
        "all",
        "Parts to measure: all, l-inf, corruptions, pr, or a list (clean,attack) of the parts clean, attack,"
        " norms, curve, corruptions, pr, gap and masking.",
        metavar="NAME|PARTS",
        flags=("--for",),
    )
    eps: str = param("8", "Distance of the L-infinity attacks, in 1/255.", metavar="DISTANCE")
    output: str | None = param(
        None,
        "Also write a page: card.html (the same as rb-plot report), card.md, or card.tex (one table row).",
        metavar="FILE",
        flags=("--output", "-o"),
    )


@shared.command()
@shared.takes("typed", CardOptions)
@options.checkpoint_options
# Its parts have fixed names, so there is no --as; --precision belongs to the intervals.
@options.takes_run(without=("split", "precision", "name_as", *options.ACCESS))
def main(typed: CardOptions, source: shared.RecordSource, work: shared.CommandContext) -> shared.Status:
    """Measure everything about a model within a time limit.

    The card measures clean accuracy, AutoAttack, the worst case over three norms, a curve over eps, 15
    corruptions, probabilistic robustness and the generalisation gap, and runs the tests for gradient masking.
    FILE contains records or is a checkpoint. If two checkpoints are given, each is evaluated in half of the
    time, and they are compared image by image.

    Every part evaluates 16 images, then 32, 64 and so on, until the time is over or all images are evaluated.
    Ctrl-C also ends the run. The record is then written with the results so far, and the next run continues
    from these results. On the same number of images, results are equal to those of the other tools, so
    rb-attack aa can use the stored results of a card. The intervals remain valid although the results are
    inspected many times and the run may stop at any time; "anytime" in evals contains the number of planned
    inspections.

    \b
    Examples:
      rb-card --time 20s trained.jsonl
      rb-card --for pr --time 20s --checkpoint model.pt --normalize cifar10 --dataset imagefolder:photos
      rb-card --for corruptions --time 20s -o card.md trained.jsonl
    """
    from rbtools.jobs.card_parts import chosen
    from rbtools.jobs.model_card import CardJob, CardRequest

    output = typed.output
    distances = parse_units.distances(typed.eps, "linf", work.screen.warn)
    if len(distances) != 1 or distances[0] == 0:
        raise UsageError(f"--eps is {typed.eps}. Expected one distance above 0, such as 8.")
    _check_output(output)
    try:
        request = CardRequest(tuple(chosen(typed.purpose)), distances[0], _seconds(typed.limit))
    except RbError as wrong:
        raise UsageError(str(wrong)) from None
    models = [path for path in source.files if _is_checkpoint(path)]
    if len(models) == 2 and len(source.files) == 2:
        if output is not None and Path(output).suffix.startswith(".htm"):
            raise UsageError(f"{output}: a report describes one model. Write -o card.md or card.tex.")
        if source.shard is not None:
            raise UsageError(
                "--shard divides records, but two checkpoints are compared as a pair. Leave it out."
            )
        return lambda: _compare(models, request, output, source, work)
    if models and len(source.files) > 1:
        raise UsageError("These files cannot be combined. Expected one or two checkpoints, or record files.")
    if models:
        source = dataclasses.replace(source, files=(), checkpoint=models[0])
    status = shared.filter_models(source, work, CardJob(request))
    return lambda: _watched(status, request, output, work)


def _check_output(output: str | None) -> None:
    if output is None:
        return
    from rbtools.store.files import check_folder_of

    if Path(output).suffix[1:] not in _ENDINGS:
        raise UsageError(f"--output is {output}. Expected a file with an extension of {', '.join(_ENDINGS)}.")
    check_folder_of(Path(output))


def _is_checkpoint(path: str) -> bool:
    """True if a file is binary. Files of records are text files."""
    if path == "-" or not Path(path).is_file():
        return False
    with opened(path) as stream:
        return b"\0" in stream.read(512)


def _watched(
    status: shared.Status, request: CardRequest, output: str | None, work: shared.CommandContext
) -> int:
    """Run the measurements with the live table, and then write the page."""
    made: list[Record] = []

    def hear(event: dict[str, Any], record: Record | None) -> None:
        if event["event"] == "record" and record is not None and "card" in record:
            made.append(record)

    work.screen.listeners.append(hear)
    try:
        with _table(request, work):
            ended = shared.done(status)
    except BaseException:  # an interruption; the record is already written
        _pages(made, output, work)
        raise
    return ended if _pages(made, output, work) else shared.FAILED


def _pages(made: list[Record], output: str | None, work: shared.CommandContext) -> bool:
    """Write the page of the finished cards, if --output is given. Returns False if writing failed."""
    if output is None or not made:
        return True
    try:
        _write_page(made, output)
    except RbError as wrong:
        work.screen.error(f"{wrong} {output} was not written.")
        return False
    work.screen.say(f"the card{'s were' if len(made) > 1 else ' was'} written to {output}.")
    return True


@contextlib.contextmanager
def _table(request: CardRequest, work: shared.CommandContext) -> Iterator[None]:
    if not work.screen.terminal or work.screen.quiet:
        yield
        return
    from rbtools.cli.card_table import live_table

    with live_table(request.seconds) as hear:
        work.screen.listeners.append(hear)
        yield


def _write_page(records: list[Record], output: str) -> None:
    from rbtools.cli import python_calls
    from rbtools.scoring import rank_order, render, table
    from rbtools.store.files import write_whole

    if Path(output).suffix.startswith(".htm"):
        python_calls.call("plot", ["report"], {"output": output}, streams.MemoryStreams(records))
        return
    if output.endswith(".tex"):
        shown = [part["metrics"][0] for part in records[0]["card"]["parts"].values() if part["metrics"]]
        ranked = [rank_order.Ranked(None, None, record) for record in records]
        text = render.to_latex(table.build(ranked, metrics=[*dict.fromkeys(shown)], fields=["name"]))
    else:
        text = "\n".join(map(_markdown, records))
    write_whole(Path(output), text.encode())


def _markdown(record: Record) -> str:
    from rbtools.records.results import short_dataset
    from rbtools.scoring import render

    title = f"{model_of(record)}, {short_dataset(record['dataset'])}"
    return f"{render.heading(title, 'md')}\n{render.to_markdown(_rows_of(record))}"


def _rows_of(record: Record) -> Table:
    from rbtools.records import metric_name, results
    from rbtools.scoring import table

    rows = []
    for name, part in record["card"]["parts"].items():
        for metric in part["metrics"]:
            entry = results.last_entry(record, metric)
            value = table.measured(entry.get("value"), entry)
            images = table.TableCell(table.sides(value.n))
            shown = value._replace(n=None)  # it has a column of its own
            rows.append([table.TableCell(name), table.TableCell(metric_name.heading(metric)), shown, images])
        if "reason" in part:
            rows.append(
                [table.TableCell(cell) for cell in (name, f"not measured: {part['reason']}", None, None)]
            )
    headings = [
        table.Heading(name, name in ("value", "images")) for name in ("part", "metric", "value", "images")
    ]
    return table.Table(headings, rows)


def _compare(
    paths: list[str],
    request: CardRequest,
    output: str | None,
    source: RecordSource,
    work: shared.CommandContext,
) -> int:
    """Compare two checkpoints, write both records, and report for each part which checkpoint is better."""
    from rbtools.execution.engine import Unfinished
    from rbtools.inputs import checkpoints
    from rbtools.jobs.model_card import answer_lines, run_pair

    hints = checkpoints.CheckpointHints(source.arch, source.normalize)
    shared.checked(hints, work.run)
    names = (paths[0], paths[1])
    with shared.opened_output(source, work.screen) as stream:
        run = work.run.changed(check_cancelled=stream.poll, warn=work.screen.warn)
        stopped: BaseException | None = None
        try:
            first, second = (checkpoints.record_of(file_path(path), hints, run) for path in paths)
            if run.plan is not None:
                return _planned((first, second), request, run, stream, work)
            with _table(request, work):
                records = run_pair((first, second), request, run)
        except Unfinished as stop:
            records, stopped = stop.result, stop.__cause__
        except UsageError:
            raise
        except RbError as wrong:
            work.screen.error(str(wrong))
            return shared.FAILED
        for record in records:
            stream.line(dumps(record))
        _pages(records, output, work)
        for line in answer_lines(records[0], names):
            work.screen.say(line)
        if stopped is not None:
            raise stopped
        return shared.DONE


def _planned(
    records: tuple[Record, Record],
    request: CardRequest,
    run: Run,
    stream: RecordWriter,
    work: shared.CommandContext,
) -> int:
    from rbtools.errors import Pending
    from rbtools.jobs.model_card import run_card

    missing = 0
    for record in records:
        try:
            record = run_card(record, request, run)
        except Pending:
            missing += 1
        stream.line(dumps(record))
    work.screen.tell(work.run.plan.event())
    for line in work.run.plan.words(2, 2 - missing, missing):
        work.screen.say(line)
    return shared.DONE


if __name__ == "__main__":
    main()

"""The command rb-plot report, which writes a page on one model."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rbtools.cli import options, shared
from rbtools.cli.sink import Sink
from rbtools.cli.source import model_of, name_of
from rbtools.pages import model_report
from rbtools.plots.output_file import PlotOptions, ending_of, refuse_to_overwrite, save
from rbtools.records.results import at
from rbtools.scoring import rank_order, remeasured, render, table

Record = dict[str, Any]


def _latex(record: Mapping[str, Any]) -> str:
    """A row with clean accuracy first, in which the mean over corruptions replaces single corruptions."""
    single = model_report.in_a_mean(record)
    names = record.get("metrics") or ()
    shown = [name for name in names if name not in single and not remeasured.is_duration(name)]
    metrics = sorted(shown, key=lambda name: name != "acc")
    ranked = [rank_order.Ranked(None, None, record)]
    return render.to_latex(table.build(ranked, metrics=metrics, fields=["name"])) if metrics else ""


def _choice(records: list[Record]) -> str:
    """The --where that only the first record meets, if its weights or its name tell it apart."""
    for field in ("checkpoint", "arch.name"):
        first, *others = (at(record, field.split(".")) for record in records)
        if isinstance(first, str) and first not in others:
            return f": --where {shlex.quote(f'{field} == {json.dumps(first)}')} is {model_of(records[0])}"
    return " with --where"


@shared.command()
@shared.takes("typed", PlotOptions)
@options.merging_sink_options
@options.screen_options
def report(typed: PlotOptions, source: shared.RecordSource, screen: shared.Terminal) -> int:
    """Write a report on one model as a single HTML file, for example for a paper's appendix or a review.

    The report contains all results with intervals and settings, the accuracies of classes, curves over eps,
    radius and severity, a checklist (whether attacks were adaptive, which gradients were replaced, whether
    the means over random samples were sufficient, the five tests of rb-attack check, AutoAttack's flags),
    and, in collapsed sections, the command lines that produce the results, a row for a LaTeX table, and
    BibTeX entries.

    Needs one record with at least one metric.

    \b
    Examples:
      rb-plot report -o report.html results.jsonl
      rb-plot report -o report.html --where 'train.method == "erm"' results.jsonl
    """
    ending_of(typed.output, ("html", "htm"))
    refuse_to_overwrite(source, typed.output)
    with shared.opened_output(source, screen) as stream:
        sink = Sink(source, screen, stream, typed.where)
        records = sink.records()
        sink.tell()
        if not sink.came:
            return shared.DONE  # --allow-empty
        if not records:
            screen.error(f"there is no record to report on, so {typed.output} was not written.")
            return shared.FAILED
        if len(records) != 1:
            screen.error(
                f"A report describes one model, but there are {len(records)} records: {typed.output} was not"
                f" written. Choose one{_choice(records)}."
            )
            return shared.FAILED
        (record,) = records
        text = model_report.page(record, _latex(record), typed.title)
        save(text, Path(typed.output), "html")
        screen.clear()
        screen.say(f"{typed.output} contains the report on {name_of(record)}.")
        return shared.FAILED if sink.bad else shared.DONE

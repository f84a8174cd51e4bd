"""rb-plot report: one page on one model."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from rbtools.cli import keywords, options, shared
from rbtools.cli.entry_commands import distance
from rbtools.cli.sink import Sink, where_option
from rbtools.cli.source import name_of
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import RbError, UsageError
from rbtools.execution.run import Run
from rbtools.inputs import checkpoints
from rbtools.pages import model_report
from rbtools.plots.output_file import ending_of, output_option, refuse_to_overwrite, save
from rbtools.records import metric_name
from rbtools.records.results import is_number
from rbtools.scoring import plotted, render, table

Record = dict[str, Any]
MOST_IMAGES = 100
_FEW = 100  # the number of images to attack if no file has adversarial ones
_STEPS = 20
_OPTIONS = ("store", "data_dir", "device", "threads", "download", "class_map", "allow_code", "dataset")


def report_page(record: Record, adv: str | None, images: int, title: str | None, run: Run) -> str:
    """The page on a record's model, with `images` worst images: of the file `adv`, or found by PGD.

    Raises RbError where they are asked for and the network, its data or the file are not there.
    """
    parts = model_report.ReportParts(latex=_latex(record))
    if adv is not None or images:
        parts = _with_images(record, parts, adv, images, run)
    else:
        words = "the network did not run: add --adv FILE.adv or --images N"
        parts = dataclasses.replace(parts, checks=[("verdicts repeat", words, None)])
    return model_report.page(record, parts, plotted, title)


def _latex(record: Mapping[str, Any]) -> str:
    """The row of a table: clean accuracy first; of corruptions whose mean is there, only the means."""
    parts = {name: metric_name.parse(name) for name in record.get("metrics") or ()}
    means = "corrupt.mean" in parts
    single = {name for name, one in parts.items() if one.stem == "corrupt" and one.suffix != "mean"}
    shown = [name for name in parts if not (means and name in single)]
    metrics = sorted(shown, key=lambda name: name != "acc")
    return render.to_latex(table.pivot([record], ["arch.name"], metrics)) if metrics else ""


def _with_images(
    record: Record, parts: model_report.ReportParts, adv: str | None, images: int, run: Run
) -> model_report.ReportParts:
    from rbtools.jobs.worst_images import summarize_adv

    with tempfile.TemporaryDirectory(prefix="rb-report-") as folder:
        path = adv or _attacked(record, str(Path(folder, "worst.adv")), run)
        summary = summarize_adv(record, path, images, run)
    header, verdicts = summary.header, summary.verdicts
    source = f"the file {adv}" if adv else f"PGD with {_STEPS} steps on {header['n']} images"
    eps, norm = float(header["eps"]), str(header.get("norm"))
    at = model_report.eps_in_words(eps, norm)
    shown = (
        f"The {len(summary.worst)} images of {source} (norm {norm}, eps {at}) that the network misclassifies"
        " with the largest confidence: original, difference (grey is none, black and white are the largest),"
        " adversarial image."
    )
    worst = [
        model_report.worst_image(
            f"{one.place}: {one.label} taken for {one.prediction} ({one.confidence:.3f})",
            *(one.clean, one.adversarial, eps),
        )
        for one in summary.worst
    ]
    says = (
        f"{verdicts.changed} of {verdicts.n} adversarial images have other verdicts among {verdicts.times};"
        f" accuracy {verdicts.single:.4f} by one verdict, {verdicts.majority:.4f} by the majority"
    )
    checks = [("verdicts repeat", says, verdicts.changed == 0)]
    return model_report.ReportParts(parts.latex, worst, shown, checks)


def _attacked(record: Record, path: str, run: Run) -> str:
    """A file of adversarial images of the record's model, by PGD at the distance of its first attack."""
    bare = {name: record[name] for name in record if name not in ("metrics", "evals", "checksums", "verify")}
    norm, eps = _distance(record)
    words = ["pgd", "--norm", norm, "--eps", eps, "--steps", str(_STEPS), "--n", str(run.selection.n or _FEW)]
    options = run.options(_OPTIONS)
    keywords.call("attack", [*words, "--save-adv", path], options, MemoryStreams([bare]))
    return path


def _distance(record: Record) -> tuple[str, str]:
    """Norm and distance, as typed, of an attack of the record: the largest up to the usual 8/255 or 0.5, else
    the smallest. 8/255 where the record has no attack.
    """
    usual = {"linf": 8 / 255, "l2": 0.5}
    attacked = [entry for entry in record.get("evals") or () if "attack" in entry and "measure" not in entry]
    known = [(e["norm"], e["eps"]) for e in attacked if e.get("norm") in usual and is_number(e.get("eps"))]
    if not known:
        return "linf", "8"
    of_norm = sorted(eps for norm, eps in known if norm == known[0][0])
    norm = known[0][0]
    near = [eps for eps in of_norm if eps <= usual[norm] * (1 + 1e-6)]
    return norm, distance(near[-1] if near else of_norm[0], norm)


@shared.command()
@output_option
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
@options.merging_sink_options
@options.verify_options
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
    adversarial images with their differences, a checklist (whether attacks were adaptive, which gradients
    were replaced, whether means over draws sufficed, the five tests of rb-attack check, AutoAttack's flags,
    whether the network's verdicts repeat: five of each image, and their majority), the row of a LaTeX table,
    the command lines that remake the results, and BibTeX of the methods.

    Needs one record with any metric; with --images its network and the data set.

    \b
    Examples:
      rb-plot report -o report.html results.jsonl
      rb-plot report --images 8 --n 50 -o report.html --where 'train.method == "erm"' results.jsonl
    """
    ending_of(output, ("html", "htm"))
    refuse_to_overwrite(source, output)
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
            if len(records) != 1:
                raise RbError(
                    f"A report is of one model, and {len(records)} came. Choose one: --where 'arch.index =="
                    " 13714'."
                )
            (record,) = records
            if checkpoint is not None:
                record = checkpoints.with_file(record, shared.file_path(checkpoint), work.run)
            count = (8 if adv is not None else 0) if images is None else images
            text = report_page(record, adv, count, title, work.run)
        except UsageError:
            raise
        except RbError as wrong:
            work.screen.error(f"{wrong} {output} was not written.")
            return shared.FAILED
        save(text, Path(output), "html")
        work.screen.clear()
        work.screen.say(f"{output} reports on {name_of(record)}.")
        return shared.FAILED if sink.bad else shared.DONE

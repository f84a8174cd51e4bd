"""rb-plot report: one page on one model."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rbtools.cli import keywords
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.pages import model_report
from rbtools.pages.shell_words import distance, is_number
from rbtools.records import metric_name
from rbtools.scoring import plotted, render, table

Record = dict[str, Any]
MOST_IMAGES = 100
_FEW = 100  # images that are attacked where no file has them
_STEPS = 20
_OPTIONS = ("store", "data_dir", "device", "threads", "download", "class_map", "allow_code", "dataset")


def report(record: Record, adv: str | None, images: int, title: str | None, run: Run) -> str:
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


def one_model(records: list[Record]) -> Record:
    """The only record. Raises RbError where there are several."""
    if len(records) != 1:
        raise RbError(
            f"A report is of one model, and {len(records)} came. Choose one: --where 'arch.index == 13714'."
        )
    return records[0]

"""The text of an issue that asks RobustBench's maintainers to add models to the leaderboard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from rbtools.errors import RbError
from rbtools.formats.base import Document, Record, Unit
from rbtools.formats.conversion_report import ConversionReport
from rbtools.formats.written import WrittenOnly, model_name, settings_of, text_of
from rbtools.papers.formats.robustbench import CORRUPTIONS, THREATS, RobustBench, attack_metric, distance
from rbtools.registry import param

_WORDS = {"Linf": "Linf", "L2": "L2", "corruptions": "Common Corruptions"}


class ClaimedModel(NamedTuple):
    """What is claimed of one model: lines of the text, and the record as far as it is there."""

    lines: tuple[str, ...]
    expressed: Record


@dataclass(frozen=True, kw_only=True)
class RobustBenchClaim(WrittenOnly):
    """The text of RobustBench's issue "New Model": a section for each record, and what is to be filled in.

    The robust accuracy is that of AutoAttack (aa.8, aa.l2.0.5) or the mean over the corruptions
    (corrupt.mean), in percent, with the number of images. What no option says is left empty.
    """

    name: ClassVar[str] = "robustbench-claim"
    version: ClassVar[int] = 1
    one_file: ClassVar[bool] = True

    threat: str | None = param(
        None, "Which results to claim, if a record has several.", choices=tuple(THREATS)
    )
    title: str = param("", "Title of the paper.", metavar="TEXT")
    url: str = param("", "Address of the paper.", metavar="URL")
    authors: str = param("", "Authors of the paper.", metavar="TEXT")
    venue: str = param("", "Where it appeared.", metavar="TEXT")
    code: str = param("", "Address of checkpoint and code.", metavar="URL")
    extra_data: str | None = param(None, "Whether other images were trained on.", choices=("true", "false"))

    def unit(self, record: Record) -> Any:
        train = record.get("train") if isinstance(record.get("train"), dict) else {}
        named = {**record, "train": {"method": model_name(record), **(train or {})}}
        info = RobustBench(threat=self.threat).unit(named)
        norm, fields = THREATS[info.threat], info.fields
        metrics = record.get("metrics") or {}
        if norm is None:
            key, robust = "corruptions_acc", CORRUPTIONS["corruptions_acc"]
        else:
            key, robust = "autoattack_acc", attack_metric("aa", distance(fields["eps"], norm), norm)
        if key not in fields or "clean_acc" not in fields:
            raise RbError(
                f"A claim has acc and {robust}, and the record lacks one of them. Evaluate it with rb-attack"
                " aa or rb-corrupt all."
            )
        evals = [
            {"metric": name, "value": metrics[name], **settings_of(record, name)} for name in ("acc", robust)
        ]
        version = evals[1].get("version")
        method = "mean over the common corruptions" if norm is None else "AutoAttack"
        method += f", {version}" if isinstance(version, str) else ""
        extra = self.extra_data or str(fields.get("additional_data", "")).lower()
        lines = (
            f"- **Architecture**: {fields['architecture']}",
            f"- **Dataset**: {fields['dataset']}",
            f"- **Threat Model**: {_WORDS[info.threat]}",
            f"- **eps**: {fields.get('eps', 'N/A')}",
            f"- **Clean accuracy**: {fields['clean_acc']}{_images(evals[0])}",
            f"- **Robust accuracy**: {fields[key]}{_images(evals[1])}",
            f"- **Additional data**: {extra}",
            f"- **Evaluation method**: {method} (rbtools, {robust})",
            f"- **Checkpoint and code**: {self.code}",
        )
        kept: Record = {"arch": {"name": text_of(record, "arch", "name")}, "dataset": record.get("dataset")}
        values = {entry["metric"]: entry["value"] for entry in evals}
        return ClaimedModel(lines, {**kept, "metrics": values, "evals": evals})

    def documents(self, units: Iterable[Unit], report: ConversionReport) -> Iterator[Document]:
        lines = [
            "# Paper Information\n",
            f"- **Paper Title**: {self.title}",
            f"- **Paper URL**: {self.url}",
            f"- **Paper authors**: {self.authors}",
            *([f"- **Venue**: {self.venue}"] if self.venue else []),
            "\n# Leaderboard ClaimedModel(s)",
        ]
        for number, unit in enumerate(units, 1):
            lines += [f"\n## Model {number}\n", *unit.content.lines]
        lines += [
            "\n# Model Zoo:\n",
            "- [ ] I want to add my models to the Model Zoo",
            "- [ ] The architecture is not among those of the Model Zoo",
            "- [ ] The models are released under the MIT license, or under this one:",
        ]
        yield Document("", ["\n".join([*lines, ""]).encode()])


def _images(entry: Record) -> str:
    n, ends = entry.get("n"), entry.get("ci95")
    if type(n) is not int:
        return ""
    if not isinstance(ends, list) or len(ends) != 2:
        return f" ({n} images)"
    return f" ({n} images, 95 % interval {100 * ends[0]:.2f} to {100 * ends[1]:.2f})"

"""Evaluation of corrupted images in .npy archives such as CIFAR-10-C, file by file.

NAME.npy holds uint8 images (5 N, H, W, C), the N images of the data set at severity 1, then at severity
2 and so on; labels.npy their labels, (5 N,) or only (N,).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import npy
from rbtools.errors import RbError
from rbtools.evaluation.base import EvalTask, Output
from rbtools.evaluation.tasks import CleanOutput, accuracy_entries, mean_over, rows_key, rows_of
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import resolve_inputs
from rbtools.inputs.data import ArchiveDataset, Data
from rbtools.jobs import evaluate_record
from rbtools.lazy import np, torch
from rbtools.records import metric_name, results
from rbtools.scoring import corruptions as sums
from rbtools.units import SEVERITIES

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.base import Batch, Correct

BLOCKS = len(SEVERITIES)  # copies of the data set in a file


@dataclass(frozen=True)
class ArchiveOutput(Output):
    """Which examples are classified correctly in one file of the archive, at one severity."""

    corruption: str
    severity: int
    content: str
    detail: bool = False
    random = False

    def key_fields(self) -> dict[str, Any]:
        return {
            "kind": "archived corruption",
            "corruption": self.corruption,
            "severity": self.severity,
            "content": self.content,
            **rows_key(self.detail),
        }

    def entry_template(self) -> list[dict[str, Any]]:
        name = metric_name.corrupt_name(self.corruption, self.severity)
        settings = {"corruption": self.corruption, "severity": self.severity, "archive": self.content}
        return [{"metric": name, **settings}]

    def entries(self, outcomes: np.ndarray, totals: Mapping[str, float]) -> list[dict[str, Any]]:
        return accuracy_entries(self, outcomes)


@dataclass(frozen=True)
class ArchiveTask(EvalTask):
    """Accuracy on one file, at some severities; `clean`: with the clean accuracy, once per archive.

    detail: keep the logits of each example.
    """

    file: Path
    content: str
    severities: tuple[int, ...]
    size: int
    clean: bool
    detail: bool = False

    @property
    def title(self) -> str:
        return self.file.name

    def outputs(self) -> Sequence[Output]:
        name, detail = self.file.stem, self.detail
        blocks = [ArchiveOutput(name, severity, self.content, detail) for severity in self.severities]
        return [CleanOutput(detail=detail), *blocks] if self.clean else list(blocks)

    def run(self, batch: Batch, wanted: Sequence[Output]) -> list[Tensor]:
        images, places = npy.mapped(self.file), batch.ids.cpu().numpy()
        outcomes = []
        for output in wanted:
            if isinstance(output, ArchiveOutput):
                block = images[places + (output.severity - 1) * self.size]
                tensor = torch.from_numpy(block).to(batch.images.device).permute(0, 3, 1, 2)
                logits = batch.logits(tensor.float().div(255).contiguous())
                outcomes.append(rows_of(batch, logits, self.detail))
            elif isinstance(output, CleanOutput):
                outcomes.append(output.measure(batch))
        return outcomes


def files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of these corruptions. Raises RbError where some are missing, or the labels are."""
    if not folder.is_dir():
        what = "is no folder" if folder.exists() else "does not exist"
        raise RbError(f"{folder} {what}. Expected the folder of an archive, with labels.npy and NAME.npy.")
    wanted = [folder / f"{name}.npy" for name in ("labels", *names)]
    lacking = [file.name for file in wanted if not file.is_file()]
    if lacking:
        there = sorted(file.stem for file in folder.glob("*.npy") if file.stem in CORRUPTIONS)
        raise RbError(
            f"The folder {folder} lacks {', '.join(lacking)}. It has: {', '.join(there) or 'no corruption'}."
            " Unpack the archive again, or name only these corruptions."
        )
    return wanted[1:]


def run_archive(
    record: dict[str, Any],
    folder: Path,
    names: Sequence[str],
    severities: tuple[int, ...],
    reference: sums.Reference | None,
    run: Run,
    detail: bool = False,
) -> dict[str, Any]:
    """Add accuracies on the files of an archive to the record, one file after the other.

    Every file is checked before the first is evaluated. A file is hashed immediately before its images are
    evaluated, so that its pages are still cached and the disk reads it once. Raises RbError where a file does
    not belong to the record's data set.
    """
    inputs = resolve_inputs(record, run)
    data = inputs.data
    has_clean = not isinstance(data, ArchiveDataset)
    if not has_clean:
        run.report.notify(
            f"the clean images of {data.name} are missing: no clean accuracy, and no relative mCE."
        )
    paths = files(folder, names)
    for path in paths:
        _check_images(path, data)
    _check_labels(folder / "labels.npy", data)
    unread = [ArchiveTask(path, "", severities, _whole(data), False) for path in paths]
    expected = [entry for task in unread for entry in evaluate_record.expected_entries(inputs, task)]
    expected += _sums(expected, None, reference, data, {})
    evaluate_record.check_entries(
        inputs.record, [{**entry, "archive": results.LATER} for entry in expected], run
    )
    computed_before, found_before = run.store.computed, run.store.found
    entries: list[dict[str, Any]] = []
    implicit_entries: list[dict[str, Any]] = []
    correct: dict[tuple[str, int], np.ndarray] = {}
    for path in paths:
        task = ArchiveTask(
            path,
            run.store.file_hash(path),
            severities,
            _whole(data),
            has_clean and not implicit_entries,
            detail,
        )
        of_file, clean = evaluate_record.task_entries(inputs, task)
        entries, implicit_entries = entries + of_file, implicit_entries + clean
        correct |= evaluate_record.correct_images(inputs, task)
    anything = run.store.computed > computed_before  # a record counts once, not once per file
    run.store.computed, run.store.found = computed_before + anything, found_before + (not anything)
    entries += _sums(entries, implicit_entries[0] if implicit_entries else None, reference, data, correct)
    record = inputs.record_with_data()
    for entry in implicit_entries:
        record = results.add_implicit(record, entry)
    return evaluate_record.add_entries(record, entries, run)


def _sums(
    entries: Sequence[dict[str, Any]],
    clean: dict[str, Any] | None,
    reference: sums.Reference | None,
    data: Data,
    correct: Correct,
) -> list[dict[str, Any]]:
    """Entries of the means and of mCE, named for the split."""
    summary = sums.summary(entries, clean, CORRUPTIONS.all, reference, partial(mean_over, correct))
    return [{**entry, "metric": metric_name.split_name(entry["metric"], data.split)} for entry in summary]


def _check_images(file: Path, data: Data) -> None:
    channels, height, width = data.about.shape
    array = _opened(file)
    if array.dtype != "uint8" or array.ndim != 4 or array.shape[1:] != (height, width, channels):
        raise RbError(
            f"{file} holds {array.dtype} {array.shape}. Expected uint8 images of the data set {data.name}:"
            f" ({BLOCKS * _whole(data)}, {height}, {width}, {channels})."
        )
    if len(array) != BLOCKS * _whole(data):
        raise RbError(
            f"{file} holds {len(array)} images. Expected {BLOCKS * _whole(data)}: the {_whole(data)} of the"
            f" data set {data.name} ({data.split}) at {BLOCKS} severities. Name theirs with --dataset."
        )


def _check_labels(file: Path, data: Data) -> None:
    labels = _opened(file)
    ours = data.load().labels.numpy()
    if labels.dtype.kind not in "iu" or labels.shape not in ((len(ours),), (BLOCKS * len(ours),)):
        raise RbError(
            f"{file} holds {labels.dtype} {labels.shape}. Expected {BLOCKS * len(ours)} whole numbers, the"
            f" labels of the data set {data.name} once for each severity."
        )
    wrong = (labels.reshape(-1, len(ours)) != ours).any(axis=0).nonzero()[0]
    if len(wrong):
        first = int(wrong[0])
        raise RbError(
            f"{file} does not fit the data set {data.name}: {len(wrong)} of {len(ours)} labels differ,"
            f" first that of image {first} ({int(labels[first])} there, {int(ours[first])} here). The images"
            " must be those of the data set, in its order."
        )


def _whole(data: Data) -> int:
    """How many images the whole split has, without the selection of --indices."""
    return data.about.sizes[data.split]


def _opened(file: Path) -> np.ndarray:
    try:
        return npy.mapped(file)
    except (ValueError, OSError) as error:
        raise RbError(
            f"{file} is damaged: {error}. Expected an array of numpy (.npy); unpack the archive again."
        ) from None

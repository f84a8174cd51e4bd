"""Evaluates archives of corrupted images such as CIFAR-10-C, whose files `corrupted_images` describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.corruptions import CORRUPTIONS
from rbtools.datasets import npy
from rbtools.errors import RbError
from rbtools.evaluation.accuracy import Accuracy, Clean, kept_of
from rbtools.evaluation.spec import Entry, Evaluation
from rbtools.evaluation.under_corruption import corruption_means
from rbtools.execution.run import Run
from rbtools.inputs.data import ArchiveDataset, Data
from rbtools.jobs.evaluate_record import Ask, Entries, Plan, PlanJob
from rbtools.lazy import np, torch
from rbtools.records import metric_name
from rbtools.scoring import corruptions as sums
from rbtools.units import SEVERITIES

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from rbtools.evaluation.base import Batch

BLOCKS = len(SEVERITIES)  # number of copies of the data set in a file, one for each severity


@dataclass(frozen=True, kw_only=True)
class Archived(Accuracy):
    """Accuracy on one file of an archive at one severity.

    `content` is the hash of the file. `size` is the number of images in the data set. `file` and `size` are
    used only in the measurement.
    """

    corruption: str
    severity: int
    content: str
    file: Path | None = field(default=None, compare=False)
    size: int = field(default=0, compare=False)

    random = False

    def by_draws(self, draws: int) -> None:
        return None

    def name(self) -> str:
        return metric_name.corrupt_name(self.corruption, self.severity)

    def column(self) -> Entry:
        return {
            "kind": "archived corruption",
            "corruption": self.corruption,
            "severity": self.severity,
            "content": self.content,
            **self.kept(),
        }

    def about(self) -> Entry:
        return {"corruption": self.corruption, "severity": self.severity, "archive": self.content}

    def images(self, batch: Batch) -> tuple[Tensor, Mapping[str, float]]:
        assert self.file is not None
        images, places = npy.mapped(self.file), batch.ids.cpu().numpy()
        block = images[places + (self.severity - 1) * self.size]
        tensor = torch.from_numpy(block).to(batch.images.device).permute(0, 3, 1, 2)
        return tensor.float().div(255).contiguous(), {}

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Self | None:
        if type(entry.get("severity")) is not int or "archive" not in entry:
            return None
        named = {name: entry[name] for name in ("corruption", "severity")}
        return cls(content=entry["archive"], **named, **kept_of(entry))


def files(folder: Path, names: Sequence[str]) -> list[Path]:
    """The files of these corruptions. Raises RbError if one of them or the file of the labels is missing."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise RbError(f"{folder} {problem}. Expected the folder of an archive, with labels.npy and NAME.npy.")
    wanted = [folder / f"{name}.npy" for name in ("labels", *names)]
    lacking = [file.name for file in wanted if not file.is_file()]
    if lacking:
        there = sorted(file.stem for file in folder.glob("*.npy") if file.stem in CORRUPTIONS)
        raise RbError(
            f"The folder {folder} lacks {', '.join(lacking)}. It has: {', '.join(there) or 'no corruption'}."
            " Unpack the archive again, or name only these corruptions."
        )
    return wanted[1:]


@dataclass(frozen=True)
class ArchiveJob(PlanJob):
    """Accuracies on the files of an archive, and their means. With `detail`, all logits are kept. Raises
    RbError before the first evaluation if a file does not belong to the record's data set."""

    folder: Path
    names: tuple[str, ...]
    severities: tuple[int, ...]
    reference: sums.Reference | None = None
    detail: bool = False

    def reads(self, run: Run) -> tuple[str, ...]:
        return ()  # the data set itself may be missing

    def plans(self, record: dict[str, Any], run: Run) -> Sequence[Plan]:
        return [self._evaluated]

    def _evaluated(self, ask: Ask) -> Iterator[Entries]:
        data, run, paths = ask.inputs.data, ask.inputs.run, files(self.folder, self.names)
        along = () if isinstance(data, ArchiveDataset) else (Clean(detail=self.detail),)
        if not along:
            run.report.notify(
                f"clean accuracy and relative mCE need the clean images of {data.name}, which are missing."
            )
        for path in paths:
            _check_images(path, data)
        _check_labels(self.folder / "labels.npy", data)
        size = data.about.sizes[data.split]  # number of images of the whole split, whatever --n selects
        given: Any = {"size": size, "detail": self.detail}
        contents = {path: run.store.file_hash(path) for path in paths}
        specs = tuple(
            Archived(corruption=path.stem, severity=severity, content=contents[path], file=path, **given)
            for path in paths
            for severity in self.severities
        )
        means = partial(corruption_means, self.reference)
        evaluation = Evaluation(title="corruptions", specs=specs, along=along, summary=means)
        yield ask.expected(evaluation)
        yield ask(evaluation).entries


def _check_images(file: Path, data: Data) -> None:
    size = data.about.sizes[data.split]
    channels, height, width = data.about.shape
    array = _array_of(file)
    if array.dtype != "uint8" or array.ndim != 4 or array.shape[1:] != (height, width, channels):
        raise RbError(
            f"{file} holds {array.dtype} {array.shape}. Expected uint8 images of the data set {data.name}:"
            f" ({BLOCKS * size}, {height}, {width}, {channels})."
        )
    if len(array) != BLOCKS * size:
        raise RbError(
            f"{file} holds {len(array)} images. Expected {BLOCKS * size}: the {size} images of {data.name}"
            f" ({data.split}) at {BLOCKS} severities. Name the data set of the archive with --dataset."
        )


def _check_labels(file: Path, data: Data) -> None:
    labels = _array_of(file)
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
            f"{file} does not fit the data set {data.name}: {len(wrong)} of {len(ours)} labels differ, first"
            f" for image {first} ({int(labels[first])} in the file, {int(ours[first])} in the data set)."
            " Expected the images of the data set in their order."
        )


def _array_of(file: Path) -> np.ndarray:
    try:
        return npy.mapped(file)
    except (ValueError, OSError) as error:
        raise RbError(
            f"{file} is damaged: {error}. Expected a numpy array (.npy); unpack the archive again."
        ) from None

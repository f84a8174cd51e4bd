"""Adversarial images in numpy's .npz files."""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError
from rbtools.evaluation.base import Outcome
from rbtools.lazy import np, torch
from rbtools.store.files import user_output
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.datasets.base import Dataset
    from rbtools.evaluation.tasks import AttackOutput


class Saver:
    """Collects batches of images; `finish` writes one .npz for each output to `folder`.

    A file holds `images` float32 (n, C, H, W) in [0, 1], `labels` and `ids` int64 (n,) (places in the
    split), `survived` bool (n,), and `linf` and `l2` float32 (n,): the perturbations' norms on [0, 1].
    """

    def __init__(self, folder: Path, names: Mapping[Any, str], dataset: Dataset, n: int) -> None:
        self.folder, self.names, self.dataset, self.n = folder, names, dataset, n
        self._aside = Path(tempfile.mkdtemp(prefix=".rb-", dir=folder))
        self._arrays: dict[Any, dict[str, np.ndarray]] = {}
        self._filled: dict[Any, int] = {}

    def add(self, output: AttackOutput, ids: Tensor, outcome: Outcome) -> None:
        """Add the outcome of the next examples."""
        assert outcome.images is not None
        images = outcome.images.cpu()
        clean = pixels(self.dataset.images[ids])
        change = (images - clean).flatten(1)
        rows = {
            "images": images,
            "labels": self.dataset.labels[ids],
            "ids": ids,
            "survived": output.still_correct(outcome.values).cpu(),
            "linf": change.abs().amax(1),
            "l2": torch.linalg.vector_norm(change, dim=1),
        }
        start = self._filled.get(output, 0)
        for name, values in rows.items():
            self._array(output, name, values)[start : start + len(ids)] = values.numpy()
        self._filled[output] = start + len(ids)

    def _array(self, output: AttackOutput, name: str, values: Tensor) -> np.ndarray:
        """A memory-mapped array: the images of a large data set need not fit in memory."""
        arrays = self._arrays.setdefault(output, {})
        if name not in arrays:
            path = self._aside / f"{len(self._arrays)}-{name}.npy"
            shape = (self.n, *values.shape[1:])
            arrays[name] = np.lib.format.open_memmap(path, "w+", values.numpy().dtype, shape)
        return arrays[name]

    def finish(self) -> list[Path]:
        """Write the arrays of each output to its file, atomically."""
        paths = []
        for output, arrays in self._arrays.items():
            path = self.folder / f"{self.names[output]}.npz"
            with (
                user_output(path, hint="Name another folder with --save-adv.") as stream,
                zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
            ):
                for name, array in arrays.items():
                    array.flush()  # type: ignore[attr-defined]
                    archive.write(array.filename, f"{name}.npy")  # type: ignore[attr-defined]
            paths.append(path)
        return paths

    def drop(self) -> None:
        """Delete the temporary files."""
        self._arrays.clear()
        for path in self._aside.iterdir():
            path.unlink()
        self._aside.rmdir()


@contextlib.contextmanager
def saver(folder: str, names: Mapping[Any, str], dataset: Dataset, n: int) -> Iterator[Saver]:
    """A Saver whose files are written if the block succeeds. Raises RbError where they cannot be written."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        files = Saver(Path(folder), names, dataset, n)
        try:
            yield files
            files.finish()
        finally:
            files.drop()
    except OSError as error:
        raise RbError(
            f"The adversarial images cannot be written to {folder}: {error.strerror or error}. Name another"
            " folder with --save-adv."
        ) from error

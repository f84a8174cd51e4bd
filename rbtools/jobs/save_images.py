"""Adversarial images in files, for --save-adv: one FILE.adv, or a folder with an .npz or PNGs for each
result."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.evaluation.base import Outcome
from rbtools.jobs import evidence, png_images
from rbtools.lazy import np, torch
from rbtools.store.files import user_output
from rbtools.trainer.augment import pixels

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.datasets.base import Dataset
    from rbtools.evaluation.tasks import AttackOutput

    Add = Callable[[AttackOutput, Tensor, Outcome], None]


class ImageFiles(NamedTuple):
    """FILE.adv, or a folder and the names of files in it, without ending; each by its output. png: the names
    are those of folders of PNGs."""

    path: str
    names: dict[Any, str]
    png: bool = False

    @property
    def one_file(self) -> bool:
        return self.path.endswith(".adv")

    def written(self) -> str:
        """A sentence about the files."""
        if self.one_file:
            return f"The adversarial images are in {self.path}. rb-verify --adv judges them."
        names = ", ".join(map(self.name, self.names))
        judged = " rb-verify --adv judges the images of such a folder." if self.png else ""
        return f"The adversarial images are in {self.path}: {names}.{judged}"

    def name(self, output: AttackOutput) -> str:
        """The name of an output's file in the folder."""
        return self.names[output] if self.png else f"{self.names[output]}.npz"


def files_to_save(
    path: str, keys: Mapping[Any, str], arch: Mapping[str, Any], png: bool = False
) -> ImageFiles | None:
    """The files for the adversarial images of these outputs, if they do not all exist.

    keys: of the outputs' results, which identify the contents. A name contains the model, the metric and the
    key. Raises RbError for a FILE.adv with other images, which it would replace.
    """
    if not path.endswith(".adv"):
        model = re.sub(r"[^\w.-]+", "-", str(arch.get("name", "model")))[:60]
        names = {output: f"{model}-{output.metric}-{key[:12]}" for output, key in keys.items()}
        files = ImageFiles(path, names, png)
        there = all(os.path.exists(os.path.join(path, files.name(output))) for output in names)
        return None if there else files
    if len(keys) != 1:
        raise RbError(f"{path} holds the images of one distance. Give one --eps, or a folder to --save-adv.")
    if os.path.exists(path):
        if evidence.header_of(path).get("key") in keys.values():
            return None
        raise RbError(f"{path} has other images already. Name another file with --save-adv, or remove it.")
    return ImageFiles(path, dict(keys))


@contextlib.contextmanager
def saving(
    files: ImageFiles, dataset: Dataset, logits: evidence.Logits, claims: Mapping[Any, Mapping[str, Any]]
) -> Iterator[Add]:
    """A function that takes the outcomes of consecutive examples; the files are written if the block
    succeeds. claims: by output, the fields of the header of a FILE.adv, or of a folder of PNGs, that are
    known before. Raises RbError where they cannot be written.
    """
    kind = "file" if files.one_file else "folder"
    folder = Path(files.path).parent if files.one_file else Path(files.path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as stack:
            saver: _AdvSaver | _PngSaver | _NpzSaver
            if files.one_file:
                (about,) = claims.values()
                saver = _AdvSaver(files, folder, stack, dataset, logits, about)
            elif files.png:
                saver = _PngSaver(files, folder, stack, dataset, claims)
            else:
                saver = _NpzSaver(files, folder, stack, dataset)
            yield saver.add
            saver.finish()
    except OSError as error:
        raise RbError(
            f"The adversarial images cannot be written to {files.path}: {error.strerror or error}. Name"
            f" another {kind} with --save-adv."
        ) from error


def _aside(folder: Path) -> IO[bytes]:
    return tempfile.TemporaryFile(dir=folder)


class _AdvSaver:
    """Writes FILE.adv: see `evidence`."""

    def __init__(
        self,
        files: ImageFiles,
        folder: Path,
        stack: contextlib.ExitStack,
        dataset: Dataset,
        logits: evidence.Logits,
        about: Mapping[str, Any],
    ) -> None:
        self.path, self.dataset, self.logits, self.about = Path(files.path), dataset, logits, about
        self.scale = evidence.Scale.of(float(about["eps"]), str(about["norm"]), dataset.images[0].numel())
        self.blocks = stack.enter_context(_aside(folder))
        self.n = self.survived = self.exact = 0

    def add(self, output: AttackOutput, ids: Tensor, outcome: Outcome) -> None:
        assert outcome.images is not None
        survived, ids = output.still_correct(outcome.values).cpu(), ids.cpu()
        block, exact = evidence.quantised(
            self.dataset, ids, outcome.images.cpu(), survived, self.scale, self.logits
        )
        self.blocks.write(block)
        self.n, self.survived = self.n + len(ids), self.survived + int(survived.sum())
        self.exact += exact

    def finish(self) -> None:
        self.blocks.seek(0)
        scale = {"step": self.scale.step, "coarse": self.scale.coarse}
        counts = {"n": self.n, "value": self.survived / self.n, "exact": self.exact}
        evidence.write(self.path, {**self.about, **scale, **counts}, self.blocks)


class _PngSaver:
    """Writes a folder of PNGs for each output, and the claim: see `evidence.PngFolder`."""

    def __init__(
        self,
        files: ImageFiles,
        folder: Path,
        stack: contextlib.ExitStack,
        dataset: Dataset,
        claims: Mapping[Any, Mapping[str, Any]],
    ) -> None:
        channels = dataset.images.shape[1]
        if channels not in (1, 3):
            raise RbError(
                f"A PNG holds images of 1 or 3 channels; these have {channels}. Leave out format=png of"
                " --save-adv."
            )
        self.files, self.folder, self.claims = files, folder, claims
        self.aside = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=folder)))
        self.counts: dict[Any, list[int]] = {}  # images, and those that survived

    def add(self, output: AttackOutput, ids: Tensor, outcome: Outcome) -> None:
        assert outcome.images is not None
        folder = self.aside / self.files.names[output]
        folder.mkdir(exist_ok=True)
        png_images.write(folder, ids.cpu(), outcome.images.cpu())
        n, survived = self.counts.get(output, [0, 0])
        still = int(output.still_correct(outcome.values).sum())
        self.counts[output] = [n + len(ids), survived + still]

    def finish(self) -> None:
        for output, (n, survived) in self.counts.items():
            folder, target = self.aside / self.files.names[output], self.folder / self.files.names[output]
            header = {**self.claims[output], "n": n, "value": survived / n}
            (folder / png_images.CLAIM).write_bytes(orjson.dumps(header, option=orjson.OPT_SORT_KEYS))
            if not target.exists():  # of another distance of the same run it may
                folder.rename(target)


class _NpzSaver:
    """Writes an .npz for each output, image by image: those of a large data set need not fit in memory.

    A file holds `images` float32 (n, C, H, W) in [0, 1], `labels` and `ids` int64 (n,) (places in the
    split), `survived` bool (n,), and `linf` and `l2` float32 (n,): the perturbations' norms on [0, 1].
    """

    def __init__(
        self, files: ImageFiles, folder: Path, stack: contextlib.ExitStack, dataset: Dataset
    ) -> None:
        self.files, self.folder, self.stack, self.dataset = files, folder, stack, dataset
        self.images: dict[Any, IO[bytes]] = {}
        self.rows: dict[Any, list[Sequence[Tensor]]] = {}

    def add(self, output: AttackOutput, ids: Tensor, outcome: Outcome) -> None:
        assert outcome.images is not None
        images = outcome.images.cpu()
        if output not in self.images:
            self.images[output] = self.stack.enter_context(_aside(self.folder))
        self.images[output].write(images.float().contiguous().numpy().tobytes())
        change = (images - pixels(self.dataset.images[ids])).flatten(1)
        norms = change.abs().amax(1), torch.linalg.vector_norm(change, dim=1)
        survived = output.still_correct(outcome.values).cpu()
        self.rows.setdefault(output, []).append((self.dataset.labels[ids], ids, survived, *norms))

    def finish(self) -> None:
        for output, images in self.images.items():
            columns = [torch.cat(parts).cpu().numpy() for parts in zip(*self.rows[output], strict=True)]
            arrays = dict(zip(("labels", "ids", "survived", "linf", "l2"), columns, strict=True))
            shape = (len(arrays["ids"]), *self.dataset.images.shape[1:])
            path = self.folder / f"{self.files.names[output]}.npz"
            with (
                user_output(path, hint="Name another folder with --save-adv.") as stream,
                zipfile.ZipFile(stream, "w") as archive,
            ):
                with archive.open("images.npy", "w", force_zip64=True) as member:
                    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(member, header)
                    images.seek(0)
                    shutil.copyfileobj(images, member)
                for name, array in arrays.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.save(member, array)

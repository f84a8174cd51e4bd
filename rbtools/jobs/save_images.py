"""Files of adversarial images for --save-adv, one .npz file for each result; `evidence` checks these files.

A file contains four arrays. `images` (n, C, H, W) are float32 in [0, 1], or uint8 for an attack with --grid
8bit. `labels` and `ids` (places in the split) are int64 (n,) in the order of the evaluation. `claim` is the
result's entry with `checkpoint` and `data`, as JSON text. In a threat whose points are not images, `points`
are float32 (n, ...), and NaN for images that are unchanged.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.attacks import lattice
from rbtools.errors import RbError
from rbtools.evaluation.base import Outcome
from rbtools.lazy import np, torch
from rbtools.store.files import user_output

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.evaluation.accuracy import Attacked

    Add = Callable[[Attacked, Tensor, Outcome], None]


class ImageFiles(NamedTuple):
    """The files in `folder`. `names` maps each spec to the name of its file without extension. With `png`,
    the images are also saved as PNGs, in a folder of the same name."""

    folder: Path
    names: dict[Any, str]
    png: bool

    def written(self) -> str:
        names = ", ".join(f"{name}.npz" for name in self.names.values())
        return f"The adversarial images are in {self.folder}: {names}. rb-verify --adv checks them."


def files_to_save(
    path: str, keys: Mapping[Any, str], arch: Mapping[str, Any], png: bool
) -> ImageFiles | None:
    """The files for the adversarial images of these specs, or None if all files already exist. `keys` maps
    specs to the keys of their results, which are part of the files' names."""
    model = re.sub(r"[^\w.-]+", "-", str(arch.get("name", "model")))[:60]
    names = {spec: f"{model}-{spec.name()}-{key[:12]}" for spec, key in keys.items()}
    files = ImageFiles(Path(path), names, png)
    endings = (".npz", "") if png else (".npz",)
    there = [(files.folder / f"{name}{ending}").exists() for name in names.values() for ending in endings]
    return None if all(there) else files


@contextlib.contextmanager
def saving(
    files: ImageFiles, labels: Tensor, shape: tuple[int, ...], claims: Mapping[Any, Mapping[str, Any]]
) -> Iterator[Add]:
    """Yields a function that saves outcomes of consecutive examples. The files are created only if the block
    succeeds.

    `labels` contains the labels of all images of the split. `shape` is the shape (n, C, H, W) of the images
    to be saved. `claims` maps specs to the fields of the claim that are known in advance. Raises RbError if
    the files cannot be written.
    """
    if files.png and shape[1] not in (1, 3):
        raise RbError(f"PNG needs 1 or 3 channels, but the images have {shape[1]}. Leave out --save-png.")
    with contextlib.ExitStack() as stack:
        results = {spec: _Saved(stack, files, spec, shape, claim) for spec, claim in claims.items()}
        yield lambda spec, ids, outcome: results[spec].add(spec, ids.cpu(), outcome)
        for result in results.values():
            result.finish(labels)


class _Saved:
    """The files of one result, written batch by batch, because all images may not fit in memory."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        files: ImageFiles,
        spec: Attacked,
        shape: tuple[int, ...],
        claim: Mapping[str, Any],
    ) -> None:
        self.claim, self.survived = claim, 0
        self.ids: list[Tensor] = []
        self.points: list[tuple[int, Tensor | None]] = []  # None if no image of the batch is attacked
        self.with_points = False
        self.levels = claim.get("grid") == "8bit"
        self.target = files.folder / files.names[spec]
        stream = user_output(Path(f"{self.target}.npz"), hint="Name another folder with --save-adv.")
        self.archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(stream), "w"))
        self.member = stack.enter_context(self.archive.open("images.npy", "w", force_zip64=True))
        header = {"descr": "|u1" if self.levels else "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self.member, header)
        self.aside = None
        if files.png:
            self.aside = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=files.folder)), "png")
            self.aside.mkdir()

    def add(self, spec: Attacked, ids: Tensor, outcome: Outcome) -> None:
        assert outcome.images is not None
        self.ids.append(ids)
        self.survived += int(spec.correct(outcome.values.cpu().numpy()).sum())
        self.with_points = not spec.method.within.points_are_images()
        if self.with_points:
            self.points.append((len(ids), None if outcome.points is None else outcome.points.float().cpu()))
        images = outcome.images.cpu()
        array = (lattice.levels(images).byte() if self.levels else images.float()).numpy()
        self.member.write(array.tobytes())
        if self.aside is not None:
            from PIL import Image

            for number, image in zip(ids.tolist(), array.transpose(0, 2, 3, 1), strict=True):
                grey = image[:, :, 0] if image.shape[2] == 1 else image
                Image.fromarray(grey).save(self.aside / f"{number}.png")

    def finish(self, labels: Tensor) -> None:
        self.member.close()
        ids = torch.cat(self.ids)
        claim = {**self.claim, "n": len(ids), "value": self.survived / len(ids)}
        text = np.array(orjson.dumps(claim, option=orjson.OPT_SORT_KEYS).decode())
        arrays = {"labels": labels[ids].numpy(), "ids": ids.numpy(), "claim": text}
        if self.with_points:
            shape = next((points.shape[1:] for _, points in self.points if points is not None), ())
            parts = [torch.full((n, *shape), torch.nan) if one is None else one for n, one in self.points]
            arrays["points"] = torch.cat(parts).numpy()
        for name, array in arrays.items():
            with self.archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.save(member, array)
        if self.aside is not None and not self.target.exists():
            self.aside.rename(self.target)

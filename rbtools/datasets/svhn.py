"""svhn: 32x32 photographs of house numbers, in MATLAB's files.

Netzer et al., "Reading digits in natural images with unsupervised feature learning", 2011. MD5 sums and
addresses are those that torchvision lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.datasets.published_files import Arrays, DataFile, Remote, check
from rbtools.lazy import np
from rbtools.plain_files import plain


@dataclass(frozen=True, kw_only=True)
class Svhn(Arrays):
    """SVHN. The files label the digit 0 as 10; here it is class 0. No flips: mirrored digits are no
    digits."""

    shape: ClassVar[tuple[int, int, int]] = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"train": 73_257, "test": 26_032, "extra": 531_131}
    normalization: ClassVar[str] = "svhn"
    augment: ClassVar[tuple[str, ...]] = ("crop",)
    class_names: ClassVar[tuple[str, ...]] = tuple(str(digit) for digit in range(10))
    folders: ClassVar[tuple[str, ...]] = (".", "svhn", "SVHN")
    archives: ClassVar[dict[str, Remote]] = {
        split: Remote((f"http://ufldl.stanford.edu/housenumbers/{split}_32x32.mat",), md5, size)
        for split, md5, size in (
            ("train", "e26dedcc434d2e4c54c9b2d4a06d8373", "182 MB"),
            ("test", "eb5a983be6a315427106f1b164d9cef3", "64 MB"),
            ("extra", "a93ce644f1a588dc4d68dda5feec44a7", "1.3 GB"),
        )
    }

    def remotes(self, split: str) -> list[Remote]:
        return [self.archives[split]]

    def parts(self, split: str) -> list[DataFile]:
        remote = self.archives[split]
        path = self.found(remote.name)
        if path is None:
            raise self.not_here(split, f"{remote.name} (torchvision's layout)")
        return [DataFile(path, remote.md5)]

    def read(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Raises RbError for any file but the published one.

        scipy's reader was not made for hostile files: it trusts lengths and types in them.
        """
        from scipy.io import loadmat

        parts = self.parts(split)
        check(self.name, parts, self.remotes(split))
        content = loadmat(plain(parts[0].path), appendmat=False, variable_names=["X", "y"])
        # Row, column, colour, number -> number, colour, row, column.
        pixels = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))
        return pixels, content["y"].reshape(-1).astype(np.int64) % 10

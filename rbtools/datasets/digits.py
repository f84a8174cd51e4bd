"""digits, mnist and svhn: images of digits.

Sources: Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository
1998; LeCun, Cortes and Burges, "The MNIST database of handwritten digits"; Netzer et al., "Reading digits in
natural images with unsupervised feature learning", 2011. MD5 sums and addresses are from torchvision.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rbtools.datasets import content_hash
from rbtools.datasets.arrays import Content, ImageArrays
from rbtools.datasets.base import Description, HashCache, NotHere
from rbtools.datasets.published_files import Arrays
from rbtools.errors import RbError
from rbtools.lazy import np

CLASS_NAMES = tuple(str(digit) for digit in range(10))

# Constants of digits, known without loading it. A test compares all of them with the data.
SIZES = {"train": 1442, "test": 355}
MEAN, STD = (0.3052,), (0.3760,)  # images of the train split
FINGERPRINTS = {
    "train": "17fbab78aab50668d3474dd1404ce2feb3332f97a8cb1fce44afe1eb44ae4c67",
    "test": "570e84577587ebb2208a6d2d658eda5c6e333fc399c64a64d417972e449ab6b0",
}
TEST_EVERY = 5  # in each class, every 5th example in scikit-learn's order is a test example


@dataclass(frozen=True, kw_only=True)
class Digits(ImageArrays):
    """scikit-learn's digits. A pixel v in 0..16 is scaled to round(255 v / 16), where 127.5 is rounded up."""

    def __post_init__(self) -> None:
        if self.argument is not None:
            raise RbError(f"The data set digits takes no argument, found '{self.name}'. Write digits.")

    def describe(self) -> Description:
        return self.described((1, 8, 8), CLASS_NAMES, dict(SIZES), mean=MEAN, std=STD)

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        if split not in FINGERPRINTS:
            raise self.unknown_split(split, FINGERPRINTS)
        return FINGERPRINTS[split]

    def content(self, split: str) -> Content:
        expected = self.fingerprint(split)
        images, labels = _split(*raw(), split)
        if content_hash.pixels_hash([images], labels) != expected:
            raise RbError(
                "The digits of the installed scikit-learn differ from those that rbtools expects, so results"
                " would not be comparable. Install another version of scikit-learn."
            )
        return Content([images], labels, CLASS_NAMES)


def raw() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's pixels, int64 (1797, 64) in 0..16, and its labels, int64 (1797,).

    The file is read directly, in 0.07 s, because importing scikit-learn takes more than a second in every
    process of a pipe. Raises RbError if scikit-learn is not installed.
    """
    package = importlib.util.find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        raise RbError(
            "The data set digits comes with scikit-learn, which is not installed."
            " Run: pip install scikit-learn"
        )
    file = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    if file.is_file():
        with gzip.open(file, "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.int64)
        return table[:, :-1], table[:, -1]
    from sklearn.datasets import load_digits

    loaded: Any = load_digits()
    return loaded.data.astype(np.int64), loaded.target.astype(np.int64)


def _split(pixels: np.ndarray, labels: np.ndarray, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The images uint8 (N, 1, 8, 8) and labels int64 (N,) of a split, in scikit-learn's order."""
    test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    chosen = test if split == "test" else ~test
    images = (pixels[chosen] * 255 + 8) // 16
    return images.astype(np.uint8).reshape(-1, 1, 8, 8), labels[chosen]


@dataclass(frozen=True, kw_only=True)
class Mnist(Arrays):
    """MNIST. Images are not augmented, because a flipped digit may look like another one, and a shifted digit
    may be cut off."""

    shape = (1, 28, 28)
    sizes: ClassVar[dict[str, int]] = {"train": 60_000, "test": 10_000}
    normalization = "mnist"
    augment = ()
    class_names = CLASS_NAMES
    folders = ("MNIST/raw", "mnist", "mnist/MNIST/raw", "MNIST", ".")
    form = "an idx file"

    def parts(self, split: str) -> dict[Path, str | None]:
        """The unpacked files if they exist, otherwise the published (gzipped) files with their MD5."""
        try:
            unpacked = [file.path.removesuffix(".gz") for file in self.files(split)]
            return dict.fromkeys(self.all_of(split, unpacked))
        except NotHere:
            return super().parts(split)

    def unpacked(self, data: bytes) -> Any:
        """Decodes an idx file: byte 3 is the number of dimensions, and their sizes follow as uint32."""
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        sizes = np.frombuffer(data, ">u4", count=data[3], offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + sizes.nbytes).reshape(sizes)

    def joined(self, parts: list[Any]) -> tuple[list[np.ndarray], np.ndarray]:
        images, labels = parts
        return [images[:, None]], labels.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Svhn(Arrays):
    """SVHN. The digit 0 has the label 10 in the files, and 0 here. Images are not flipped in training."""

    shape = (3, 32, 32)
    sizes: ClassVar[dict[str, int]] = {"train": 73_257, "test": 26_032, "extra": 531_131}
    normalization = "svhn"
    augment = ("crop",)
    class_names = CLASS_NAMES
    folders = (".", "svhn", "SVHN")
    form = "a MATLAB file"

    def unpacked(self, data: bytes) -> Any:
        from scipy.io import loadmat

        content = loadmat(io.BytesIO(data), variable_names=["X", "y"])
        images = np.ascontiguousarray(content["X"].transpose(3, 2, 0, 1))  # (H, W, C, N) -> (N, C, H, W)
        return images, content["y"].reshape(-1).astype(np.int64) % 10

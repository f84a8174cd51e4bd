"""digits: the 1,797 handwritten digits that come with scikit-learn, 8x8, one channel, ten classes.

Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning Repository 1998.
Nothing is downloaded: the images are in scikit-learn's own package.
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rbtools.datasets import content_hash
from rbtools.datasets.base import Cache, Dataset, DatasetSource, Description
from rbtools.errors import RbError
from rbtools.lazy import np, torch

# Known without loading anything; a test compares all of them with the data.
SIZES = {"train": 1442, "test": 355}
MEAN, STD = (0.3052,), (0.3760,)  # of the train split
FINGERPRINTS = {
    "train": "17fbab78aab50668d3474dd1404ce2feb3332f97a8cb1fce44afe1eb44ae4c67",
    "test": "570e84577587ebb2208a6d2d658eda5c6e333fc399c64a64d417972e449ab6b0",
}

# In each class, in scikit-learn's order, every fifth example is a test example: the 5th, 10th, ...
TEST_EVERY = 5


@dataclass(frozen=True, kw_only=True)
class Digits(DatasetSource):
    """The embedded data set. Pixels 0..16 become round(255 v / 16), with 127.5 (v = 8) rounded up to 128."""

    def __post_init__(self) -> None:
        if self.argument is not None:
            raise RbError(f"The data set digits takes no argument, found '{self.name}'. Write digits.")
        self.refuse_class_map()

    def describe(self) -> Description:
        return Description(
            name=self.name,
            shape=(1, 8, 8),
            classes=10,
            class_names=[str(digit) for digit in range(10)],
            sizes=dict(SIZES),
            mean=MEAN,
            std=STD,
            augment=(),
        )

    def fingerprint(self, split: str, cache: Cache | None = None) -> str:
        if split not in FINGERPRINTS:
            raise self.unknown_split(split, FINGERPRINTS)
        return FINGERPRINTS[split]

    def load(self, split: str) -> Dataset:
        """Raises RbError if scikit-learn is missing or has different digits."""
        known = self.fingerprint(split)
        images, labels = split_of(*raw(), split)
        if content_hash.pixels_hash(images.shape, [images], labels) != known:
            raise RbError(
                "The digits of the installed scikit-learn are not the ones that rbtools knows, so results"
                " would not be comparable. Install another version of scikit-learn."
            )
        about = self.describe()
        return Dataset(
            name=self.name,
            split=split,
            classes=about.classes,
            class_names=about.class_names,
            images=torch.from_numpy(images),
            labels=torch.from_numpy(labels),
        )


def raw() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's pixels, 0..16, (1797, 64) and its labels (1797,).

    Its file is read directly, in 0.07 s: importing scikit-learn, and scipy with it, costs over a second in
    every process of a pipe. If the file was moved, scikit-learn's own function is used. Raises RbError if
    scikit-learn is not installed.
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


def split_of(pixels: np.ndarray, labels: np.ndarray, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The images uint8 (N, 1, 8, 8) and labels int64 (N,) of a split, in scikit-learn's order."""
    test = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        test[np.flatnonzero(labels == digit)[TEST_EVERY - 1 :: TEST_EVERY]] = True
    chosen = test if split == "test" else ~test
    images = ((pixels[chosen] * 255 + 8) // 16).astype(np.uint8)
    return images.reshape(-1, 1, 8, 8), labels[chosen]

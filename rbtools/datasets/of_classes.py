"""NAME:classes=A/B: the images of some classes of another data set, for example for theorems about two
classes.

A data set with a class map is handled in the same way: its labels are the class indices of the model.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from rbtools.datasets.base import Dataset, DatasetSource, Description, HashCache, present_in
from rbtools.datasets.imagefolder import read_class_map
from rbtools.datasets.streaming import Streamed
from rbtools.errors import RbError, near
from rbtools.lazy import torch

PREFIX = "classes="


@dataclass(frozen=True, kw_only=True)
class OfClasses(DatasetSource):
    """Some classes of a data set. A label is the position of its class in the list: in digits:classes=3/8,
    the digit 8 has the label 1.

    A class map may name more classes than the complete data set has. If classes are left out, `describe` has
    to load the splits to count the images.
    """

    whole: DatasetSource

    @functools.cached_property
    def about(self) -> Description:
        return self.whole.describe()

    @functools.cached_property
    def names(self) -> list[str]:
        """The names of the classes. Raises RbError for fewer than two classes or an unknown name."""
        names = self.about.class_names
        if not str(self.argument).startswith(PREFIX):
            return read_class_map(str(self.class_map), names)
        chosen = str(self.argument).removeprefix(PREFIX).split("/")
        for name in chosen:
            if name not in names:
                raise RbError(
                    f"The data set {self.whole.name} has no class '{name}'.{near(name, names)} It has:"
                    f" {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}."
                )
        if len(chosen) < 2 or len(set(chosen)) < len(chosen):
            raise RbError(
                f"The data set '{self.name}' names {len(set(chosen))} classes. Expected two or more, each"
                f" once: {self.whole.name}:{PREFIX}{'/'.join(names[:2])}."
            )
        return chosen if self.class_map is None else read_class_map(self.class_map, chosen)

    @functools.cached_property
    def wanted(self) -> list[int]:
        """The index of each class in the complete data set, or -1 if it has no such class."""
        number = {name: place for place, name in enumerate(self.about.class_names)}
        return [number.get(name, -1) for name in self.names]

    def describe(self) -> Description:
        about, names = self.about, self.names
        parts = not set(about.class_names) <= set(names)
        sizes = {split: len(self.load(split)) for split in about.sizes} if parts else about.sizes
        present = present_in(names, about.class_names)
        return replace(
            about, name=self.name, classes=len(names), class_names=names, sizes=sizes, present=present
        )

    def load(self, split: str) -> Dataset:
        whole = self.whole.load(split)
        places = torch.full((whole.classes,), -1)
        for place, number in enumerate(self.wanted):
            if number >= 0:
                places[number] = place
        labels = places[whole.labels]
        images, ids = whole.images, (labels >= 0).nonzero()[:, 0]
        if isinstance(images, Streamed):
            images = images.only(ids.numpy())
        elif len(ids) < len(labels):
            images = images[ids]
        return Dataset(
            name=self.name,
            split=split,
            classes=len(self.names),
            class_names=self.names,
            images=images,
            labels=labels[ids],
        )

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """The hash of the fingerprint of the complete data set and of the class indices."""
        content = f"{self.whole.fingerprint(split, cache)} {PREFIX}{self.wanted}"
        return hashlib.sha256(content.encode()).hexdigest()

    def download(self, split: str, say: Callable[[str], None], check_cancelled: Callable[[], None]) -> None:
        self.whole.download(split, say, check_cancelled)

"""NAME:classes=A/B: the images of some classes of another data set, such as the two of a theorem."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace

from rbtools.datasets.base import Dataset, DatasetSource, Description, HashCache
from rbtools.errors import RbError, near
from rbtools.lazy import torch

PREFIX = "classes="


@dataclass(frozen=True, kw_only=True)
class OfClasses(DatasetSource):
    """Labels are the places in the list: of digits:classes=3/8 a 3 is class 0 and an 8 class 1.

    A description has the number of images, so that it loads them.
    """

    whole: DatasetSource

    @functools.cached_property
    def wanted(self) -> list[int]:
        """The classes' numbers in the whole data set. RbError for fewer than two, or an unknown one."""
        names = self.whole.describe().class_names
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
        return [names.index(name) for name in chosen]

    def describe(self) -> Description:
        about, wanted = self.whole.describe(), self.wanted
        sizes = {split: len(self.load(split)) for split in about.sizes}
        names = [about.class_names[number] for number in wanted]
        return replace(about, name=self.name, classes=len(wanted), class_names=names, sizes=sizes)

    def load(self, split: str) -> Dataset:
        if split not in self.loaded_splits:
            self.loaded_splits[split] = self._chosen(split)
        return self.loaded_splits[split]

    @functools.cached_property
    def loaded_splits(self) -> dict[str, Dataset]:
        return {}

    def _chosen(self, split: str) -> Dataset:
        whole = self.whole.load(split)
        if not isinstance(whole.images, torch.Tensor):
            raise RbError(
                f"The images of {self.whole.name} do not fit in memory. {PREFIX} is for those that do."
            )
        places = torch.full((whole.classes,), -1)
        places[self.wanted] = torch.arange(len(self.wanted))
        labels = places[whole.labels]
        return Dataset(
            name=self.name,
            split=split,
            classes=len(self.wanted),
            class_names=[whole.class_names[number] for number in self.wanted],
            images=whole.images[labels >= 0],
            labels=labels[labels >= 0],
        )

    def fingerprint(self, split: str, cache: HashCache | None = None) -> str:
        """The hash of the whole's fingerprint and the classes' numbers."""
        content = f"{self.whole.fingerprint(split, cache)} {PREFIX}{self.wanted}"
        return hashlib.sha256(content.encode()).hexdigest()

    def download(self, split: str, say: Callable[[str], None], check_cancelled: Callable[[], None]) -> None:
        self.whole.download(split, say, check_cancelled)

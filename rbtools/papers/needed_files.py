"""The files that reproductions at full scale read; needed_files.yaml lists the data sets."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rbtools.datasets import DATASETS
from rbtools.errors import RbError
from rbtools.papers import packaged, recipes
from rbtools.papers.recipes import Setting


class NeededFile(NamedTuple):
    path: str
    source: str
    layout: str


def check(name: str, setting: Setting) -> None:
    """Raise RbError, which lists the missing files, if a reproduction at full scale lacks files."""
    if text := missing(name, setting):
        raise RbError(text)


def missing(name: str, setting: Setting) -> str:
    """The list of the files that a reproduction at full scale lacks; "" if it lacks none."""
    recipes.check_scale(name, setting)
    if setting.scale not in packaged.FULL:
        return ""
    lacking = [one for one in _needed(name, setting) if not Path(one.path).exists()]
    lines = [f"  {one.path}\n    from: {one.source}\n    layout: {one.layout}" for one in lacking]
    return "\n".join([f"reproduce-{name} at full scale needs these missing files:", *lines]) if lines else ""


def _needed(name: str, setting: Setting) -> Iterator[NeededFile]:
    listed = packaged.read("needed_files.yaml")
    chosen = listed["reproductions"][name]
    if name == "prbench":
        pairs = [word.partition("/")[0] for word in recipes.word(name, "pairs", setting)]
        chosen += [one for one in listed["sets"] if one in pairs and one not in chosen]
    for one in chosen:
        yield _data_set(one, setting.data, **listed["sets"][one])
    if name == "prbench":
        yield from _transformers(setting)
    if name == "nas-bench-201-robustness":
        first = Path(setting.weights, "000000-FULL.pth")
        yield NeededFile(
            setting.weights,
            "the authors of NAS-Bench-201 (archive NAS-Bench-201-v1_1-096897, unpacked) or of NATS-Bench"
            " (NATS-tss-v1_0-3ffb9-full)",
            f"{first} and so on to 015624, or 000000.pickle.pbz2 and so on",
        )


def _data_set(
    name: str, folder: str, *, path: str, source: str, layout: str, mark: str = "", download: bool = False
) -> NeededFile:
    known: Any = DATASETS.load(name) if mark else None
    places = [Path(folder, one) for one in known.folders] if mark else []
    found = [place for place in places if any(place.glob(mark))]
    fetched = f", or let a tool fetch it: --dataset {name} --download" if download else ""
    return NeededFile(str(found[0] if found else Path(folder, path)), source + fetched, layout)


def _transformers(setting: Setting) -> Iterator[NeededFile]:
    """The weights of timm's networks in the cache of the Hugging Face Hub, the weights of ViT-S, and timm."""
    home = os.environ.get("HF_HOME", str(Path("~/.cache/huggingface").expanduser()))
    cache = os.environ.get("HF_HUB_CACHE", str(Path(home, "hub")))
    networks = [one for word in recipes.word("prbench", "vits", setting) for one in word.split(",")]
    for word in networks:
        name = word.removeprefix("timm:").partition(":")[0]
        yield NeededFile(
            str(Path(cache, f"models--timm--{name}")),
            f"timm's authors: hf download timm/{name} model.safetensors; or leave the transformers out:"
            " PR_VITS=",
            "snapshots/COMMIT/model.safetensors, as the Hub's library stores it",
        )
    vit_s = recipes.word("prbench", "vit_s", setting)
    if vit_s:
        from rbtools.zoo import timm_2020

        source = f"timm's authors: {timm_2020.URL}; or leave ViT-S out: PR_VIT_S="
        yield NeededFile(vit_s[0], source, "the unchanged file")
    if (networks or vit_s) and importlib.util.find_spec("timm") is None:
        yield NeededFile("timm", "pip install 'rbtools[timm]', or PR_VITS= PR_VIT_S=", "a Python package")

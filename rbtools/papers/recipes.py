"""The recipes of papers as pipes of commands, from the files of `recipes/`, at three scales: tiny (a test
that takes seconds), mini (digits), full (the paper's).

A file has `words`, the texts of placeholders {name}: one for all scales, or one each for mini, full and tiny;
and `pipe`, a list of stages. A stage is a command, or a list whose members run one after another into the
next stage. A member is a command or a mapping:

    pipe, group     its stages, or its members in place of it
    at              only at these scales
    for, in         once for each of these words; a name with a / takes a word apart
    words, words_of further words for what it has; those of a loop's words that fit a pattern

`pipes` names lists of stages or members that stand in several places, as "{name}".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

from rbtools.errors import RbError
from rbtools.plain_files import parse_yaml

NAMES = ("nas-bench-201-robustness", "nas-robbench-201", "prbench", "theory", "wci")
SCALES = ("mini", "full", "tiny")
Command = list[str]
Stage = Command | tuple["Pipe", ...]
Pipe = list[Stage]
"""Stages: each a command's arguments, or pipes of which one after another writes into the next stage."""

_VIT_S = "vit_small_p16_224-15ec54c9.pth"
_VIT_L = "vit_large_patch16_224.augreg_in21k_ft_in1k"
_TIMM = (
    *("deit_tiny_patch16_224.fb_in1k", "deit_small_patch16_224.fb_in1k"),
    *("vit_base_patch16_224.orig_in21k_ft_in1k", _VIT_L),
)
VITS = ",".join(f"timm:{name}:side=32:patch=4" for name in _TIMM)
PAIRS = (
    "cifar10/wrn-28-10 cifar10/vgg19 cinic10/resnet18 svhn/resnet18 cifar100/resnet18 cinic10/wrn-28-10"
    " svhn/wrn-28-10 cifar100/wrn-28-10 svhn/vgg19 cifar100/vgg19 tinyimagenet/resnet18 tinyimagenet/resnet34"
    " imagenet50/resnet18 mnist/simplecnn"
)


@dataclass(frozen=True)
class Setting:
    """The parameters of a recipe. scale: mini, full or tiny. data, weights: folders of data sets and of
    NAS-Bench-201's published weights.
    jobs: trainings at once, or auto or ray. shard: I/N, a part of the records. dataset: another data set for
    the curves of wci. pairs: further SET/NETWORK of PRBench. vits: networks of timm for its tables 8 and 9,
    with commas; vit_s: the file of ViT-S's weights. None: the scale's own, "" leaves them out.
    """

    scale: str
    data: str = "data"
    weights: str = "data/nas-bench-201"
    jobs: str = "2"
    shard: str | None = None
    dataset: str = ""
    pairs: str | None = None
    vits: str | None = None
    vit_s: str | None = None

    def at(self, mini: str, full: str, tiny: str) -> str:
        """The words of this scale."""
        return (mini, full, tiny)[SCALES.index(self.scale)]

    def pairs_of_scale(self) -> str:
        small = "digits/simplecnn"
        return self.at(f"digits/nb201-11472 {small}", PAIRS, small) if self.pairs is None else self.pairs

    def vits_of_scale(self) -> str:
        return self.at("", VITS, "") if self.vits is None else self.vits

    def vit_s_of_scale(self) -> str:
        return self.at("", f"{self.data}/{_VIT_S}", "") if self.vit_s is None else self.vit_s

    def words(self) -> dict[str, str]:
        """What placeholders of recipes stand for; names that may have spaces are quoted."""
        vits = self.vits_of_scale()
        quoted = {"data_folder": self.data, "weights_folder": self.weights, "vit_s": self.vit_s_of_scale()}
        words = {
            **{name: shlex.quote(text) if text else "" for name, text in quoted.items()},
            "jobs": self.jobs if self.jobs.isdigit() else "auto",
            "dataset": f"--dataset {shlex.quote(self.dataset)}" if self.dataset else "",
            "eps": "--eps 8" if self.dataset else "--eps 32",
            "step": "--step-size 2" if self.dataset else "--step-size 8",
            "pairs": self.pairs_of_scale(),
            "vits": vits,
            "vits_of_table_9": ",".join(one for one in vits.split(",") if _VIT_L not in one),
        }
        return {name: _Given(text) for name, text in words.items()}


def pipe(name: str, setting: Setting) -> Pipe:
    """The pipe of a recipe, one of NAMES."""
    text = resources.files(__package__).joinpath("recipes", f"{name}.yaml").read_text(encoding="utf-8")
    recipe = parse_yaml(text)
    words = {**setting.words(), **_Reader.of_scale(recipe["words"], setting.scale)}
    return _Reader(setting.scale, recipe.get("pipes", {})).stages(recipe["pipe"], words)


@dataclass(frozen=True)
class _Reader:
    """A recipe at a scale, and its named lists."""

    scale: str
    named: Mapping[str, list[Any]]

    def stages(self, items: Any, words: Mapping[str, str]) -> Pipe:
        """The stages of a pipe: commands, and groups of pipes."""
        found: Pipe = []
        for item in self._items(items):
            if isinstance(item, list):
                found.append(tuple(self.members(item, words)))
            elif isinstance(item, Mapping):
                found += [stage for pipe in self.members([item], words) for stage in pipe]
            else:
                found.append(_command(item, words))
        return found

    def members(self, items: Any, words: Mapping[str, str]) -> Iterator[Pipe]:
        """The pipes of a group."""
        for item in self._items(items):
            if not isinstance(item, Mapping):
                yield self.stages([item], words)
            elif self.scale in item.get("at", self.scale).split():
                for inside in self._turns(item, words):
                    yield from (
                        self.members(item["group"], inside)
                        if "group" in item
                        else [self.stages(item["pipe"], inside)]
                    )

    def _turns(self, item: Mapping[str, Any], words: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """The words of each turn of a loop, or of the only one."""
        names = item.get("for", "").split("/")
        for value in shlex.split(_filled(item["in"], words)) if "for" in item else [""]:
            of = [more for pattern, more in item.get("words_of", {}).items() if fnmatchcase(value, pattern)]
            parts = value.split("/", len(names) - 1)
            if len(parts) < len(names):
                raise RbError(f"'{value}' lacks a part. Expected {'/'.join(names).upper()}.")
            turn = dict(zip(names, (_Given(shlex.quote(part)) for part in parts), strict=True))
            inside = {**words, **turn}
            for more in (item.get("words", {}), *of):
                inside |= self.of_scale(more, self.scale)
            yield inside

    def _items(self, items: Any) -> Iterator[Any]:
        for item in [items] if isinstance(items, str) else items:
            named = isinstance(item, str) and self.named.get(item.strip("{}"))
            yield from named or [item]

    @staticmethod
    def of_scale(words: Mapping[str, Any], scale: str) -> dict[str, str]:
        """The words of a scale, each of which is the same for all or has three forms."""
        place = SCALES.index(scale)
        return {name: str(one[place] if isinstance(one, list) else one) for name, one in words.items()}


def _filled(text: str, words: Mapping[str, str]) -> str:
    """The text with words for its placeholders. Those of the file may have placeholders themselves; a `{` of
    the user's is none."""

    def word(found: re.Match[str]) -> str:
        filled = words[found[1]]
        return filled if isinstance(filled, _Given) else _filled(filled, words)

    return re.sub(r"\{(\w+)\}", word, text)


class _Given(str):
    """A word that the user gave, or a turn of a loop over such words: it is not filled again."""


def _command(text: str, words: Mapping[str, str]) -> Command:
    return shlex.split(_filled(text, words))

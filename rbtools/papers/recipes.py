"""The recipes of papers as pipes of commands, read from the files in `recipes/`. The scales are tiny
(a test of a few seconds), mini (the built-in digits) and full (as in the paper). `scales` of a recipe may
list two more: small (a small network learns the user's images within hours) and text (see `packaged`).

A file has two further entries. `words` contains the texts for placeholders {name}, which may depend on the
scale (`packaged`), and `pipe` is a list of stages. A stage is a command, or a list of members that run one
after another and write to the next stage.

A member is a command or a mapping. A mapping has the key `pipe`, which contains the stages of the member, or
the key `group`, which contains other members. `at` lists the scales at which the member is used. If the text
of `if` is empty, the member is not used. `for` and `in` repeat the member for each word of a text, and a name
that contains / splits each word. `words` contains further texts for placeholders. `words_of` contains further
texts for placeholders if the word of a loop matches a pattern.

`pipes` gives names to lists of stages or members, which can then be used in several places as "{name}".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from rbtools.errors import RbError
from rbtools.papers import packaged

NAMES = ("nas-bench-201-robustness", "nas-robbench-201", "prbench", "theory", "wci")
Command = list[str]
# A stage is a command, or several pipes, which run one after another and write to the next stage.
Stage = Command | tuple["Pipe", ...]
Pipe = list[Stage]

_SCALES = ("mini", "full", "tiny")
_VIT_L = "vit_large_patch16_224"  # not in PRBench's table 9


@dataclass(frozen=True)
class Setting:
    """The parameters of a recipe. `scale` is one of the recipe's scales. `data` and `weights` are the folders
    of data sets and of NAS-Bench-201's published weights. `jobs` is the number of simultaneous training runs,
    or auto or ray. `shard` is I/N. `dataset` replaces the data set for the curves of wci. `pairs` contains
    further pairs SET/NETWORK of PRBench. `vits` names networks of timm for PRBench's tables 8 and 9,
    separated by commas. `vit_s` is the file of ViT-S's weights. If `pairs`, `vits` or `vit_s` is None, the
    value of the scale is used; if it is "", the recipe omits these networks."""

    scale: str
    data: str = "data"
    weights: str = "data/nas-bench-201"
    jobs: str = "2"
    shard: str | None = None
    dataset: str = ""
    pairs: str | None = None
    vits: str | None = None
    vit_s: str | None = None

    def words(self) -> dict[str, str]:
        """The texts for placeholders that the user chose, which replace the texts in the file. Names of
        folders, files and networks are quoted for a shell."""
        names = {"data_folder": self.data, "weights_folder": self.weights}
        names |= {key: one for key in ("vits", "vit_s") if (one := getattr(self, key)) is not None}
        words = {
            **{name: shlex.quote(text) if text else "" for name, text in names.items()},
            "jobs": self.jobs if self.jobs.isdigit() else "auto",
            "dataset": f"--dataset {shlex.quote(self.dataset)}" if self.dataset else "",
            "eps_of_dataset": "--eps 8" if self.dataset else "--eps 32",
            "step_of_dataset": "--step-size 2" if self.dataset else "--step-size 8",
            **({} if self.pairs is None else {"pairs": self.pairs}),
        }
        return {name: _Given(text) for name, text in words.items()}


def check_scale(name: str, setting: Setting) -> None:
    """Raise RbError if the recipe lacks the scale, or if the scale needs the user's images."""
    recipe = packaged.read(f"recipes/{name}.yaml")
    scales = recipe.get("scales", _SCALES)
    if setting.scale not in scales:
        raise RbError(f"{name} has no scale {setting.scale}. Choose from: {', '.join(scales)}.")
    if setting.scale == "small" and not setting.dataset:
        raise RbError(
            "the scale small trains on your images. Name them: --dataset imagefolder:PATH (with make,"
            " DATASET=imagefolder:PATH), or cifar10 if --data contains it."
        )


def pipe(name: str, setting: Setting) -> Pipe:
    check_scale(name, setting)
    recipe = packaged.read(f"recipes/{name}.yaml")
    return _Reader(setting.scale, recipe.get("pipes", {})).stages(recipe["pipe"], _words(recipe, setting))


def word(name: str, placeholder: str, setting: Setting) -> list[str]:
    return _command(f"{{{placeholder}}}", _words(packaged.read(f"recipes/{name}.yaml"), setting))


def _words(recipe: Mapping[str, Any], setting: Setting) -> dict[str, str]:
    words = {**packaged.at_scale(recipe["words"], setting.scale), **setting.words()}
    kept = [one for one in _filled("{vits}", {"vits": "", **words}).split(",") if _VIT_L not in one]
    return {**words, "vits_of_table_9": ",".join(kept)}


@dataclass(frozen=True)
class _Reader:
    """A reader of one recipe at one scale; `named` maps names to lists of stages or members."""

    scale: str
    named: Mapping[str, list[Any]]

    def stages(self, items: Any, words: Mapping[str, str]) -> Pipe:
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
        for item in self._items(items):
            if not isinstance(item, Mapping):
                yield self.stages([item], words)
            elif self.scale in item.get("at", self.scale).split() and _filled(item.get("if", "-"), words):
                for inside in self._turns(item, words):
                    yield from (
                        self.members(item["group"], inside)
                        if "group" in item
                        else [self.stages(item["pipe"], inside)]
                    )

    def _turns(self, item: Mapping[str, Any], words: Mapping[str, str]) -> Iterator[dict[str, str]]:
        """The placeholder texts for each repetition of a loop; without a loop, there is one repetition."""
        names = item.get("for", "").split("/")
        for value in _filled(item["in"], words).split() if "for" in item else [""]:
            of = [more for pattern, more in item.get("words_of", {}).items() if fnmatchcase(value, pattern)]
            parts = value.split("/", len(names) - 1)
            if len(parts) < len(names):
                raise RbError(f"'{value}' lacks a part. Expected {'/'.join(names).upper()}.")
            turn = dict(zip(names, (_Given(shlex.quote(part)) for part in parts), strict=True))
            inside = {**words, **turn}
            for more in (item.get("words", {}), *of):
                inside |= packaged.at_scale(more, self.scale)
            yield inside

    def _items(self, items: Any) -> Iterator[Any]:
        for item in [items] if isinstance(items, str) else items:
            named = isinstance(item, str) and self.named.get(item.strip("{}"))
            yield from named or [item]


def _filled(text: str, words: Mapping[str, str]) -> str:
    """The text with its placeholders replaced. Replacement texts from the file may contain placeholders, but
    a `{` in a user's text is not a placeholder."""

    def word(found: re.Match[str]) -> str:
        filled = words[found[1]]
        return filled if isinstance(filled, _Given) else _filled(filled, words)

    return re.sub(r"\{(\w+)\}", word, text)


class _Given(str):
    """A placeholder text that the user chose, or one part of it; placeholders in it are not replaced."""


def _command(text: str, words: Mapping[str, str]) -> Command:
    return shlex.split(_filled(text, words))

"""The pipe of command lines that reproduces a record, starting from the architecture or the weights file."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import PurePath
from typing import Any, NamedTuple

from rbtools import registry, spaces
from rbtools.cli.click_commands import with_pairs
from rbtools.cli.declare import TOOLS, Option, Tool, method_options
from rbtools.datasets import preprocessing
from rbtools.inputs.named_networks import SIZES, VARIANTS
from rbtools.pages.templates import CONTROL

Record = Mapping[str, Any]
# Options for a run's own input and output, which another run does not have.
_OF_A_RUN = frozenset(("allow_empty", "in_place", "shard", "placeholders"))
_OF_A_FILE = frozenset(("checkpoint", "arch", "normalize"))
# The label of a file as `ToolCall.label` writes it; a revision of published weights follows a slash.
_NAME_WITH_HASH = re.compile(r"(?<![^=:,])([^/=:,]+)@([0-9a-f]{8})(?![^=:,])")


class _Stage(NamedTuple):
    """A command line: the words that every run needs, and the words that name a weights file."""

    words: tuple[str, ...]
    of_file: tuple[str, ...] = ()
    starts: bool = False  # whether it reads no records


def steps_of(record: Record) -> list[str]:
    """The command lines that reproduce the record, each of which reads the output of the previous one; empty
    if the record has none. The first begins with comments on the hashes of files."""
    sources = [record.get("train"), *(record.get("evals") or ())]
    lines = [source.get("command") for source in sources if isinstance(source, Mapping)]
    train = sources[0] if isinstance(sources[0], Mapping) else {}
    stages = [_stage(_words(line), train) for line in dict.fromkeys(lines) if isinstance(line, str)]
    opening = next((stage for stage in stages if stage.starts), None)
    later = [stage.words for stage in stages if stage is not opening]
    if opening is not None:
        later.insert(0, opening.words + opening.of_file)
    elif source := _source(record, [word for stage in stages for word in stage.words]):
        later[:0] = [("rb-arch", *source)] if later else []
    notes: dict[str, None] = {}
    steps = dict.fromkeys(shlex.join(_without_hashes(word, notes) for word in words) for words in later)
    plain = [CONTROL.sub("\ufffd", text) for text in (*notes, *steps)]
    return ["\n".join(plain[: len(notes) + 1]), *plain[len(notes) + 1 :]] if steps else []


def _without_hashes(word: str, notes: dict[str, None]) -> str:
    """Replace labels of files in a word by their names; the hashes in the labels become comments."""
    for name, digest in _NAME_WITH_HASH.findall(word):
        notes[f"# The SHA-256 of {name} begins with {digest}."] = None
    return _NAME_WITH_HASH.sub(r"\1", word)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError:  # no command line of a tool
        return [line]


def _stage(words: list[str], train: Record) -> _Stage:
    name = words[0].removeprefix("rb-") if words else ""
    if name not in TOOLS or words[0] == name:
        return _Stage(tuple(words))
    kept, of_file = [words[0]], list[str]()
    from_file = "checkpoint" in _options(name)[1]  # rb-train has another --normalize
    for option, group in _groups(name, with_pairs(words[1:])):
        if name == "train":
            kept += [] if option in _OF_A_RUN else _of_one_training(option, group, train)
        elif option in _OF_A_FILE and from_file:
            of_file += group
        elif option not in _OF_A_RUN:
            kept += group
    starts = name == "search" or any(word.startswith("--checkpoint") for word in of_file)
    return _Stage(tuple(kept), tuple(of_file), starts)


def _of_one_training(option: str | None, group: list[str], train: Record) -> list[str]:
    """The words of an option of rb-train for one of its records: the method and the seed of this record, and
    no option that only other methods of the command line have."""
    methods: Any = TOOLS.load("train").registry
    method = str(train.get("method"))
    if option == "seed" and option in train:
        return ["--seed", str(train["seed"])]
    if not methods.knows(method) or option is None:  # the user's own, which its name alone does not find
        return group
    if option == "method":
        return ["--method", method]
    its = {field.name for field in registry.options(methods.load(method))}
    return group if option in its or option in _options("train")[1] else []


def _groups(name: str, words: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """The options of a command line with their values, and its subcommands; the files of records are left
    out."""
    tool: Tool | None = TOOLS.load(name)
    flags, _ = _options(name)
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word.startswith("-") and word not in ("-", "--"):
            option = flags.get(word.partition("=")[0])
            alone = "=" in word or not rest or (option is not None and option.kind is bool)
            if option is None and not alone:  # an option of another version
                alone = rest[0].startswith("-")
            if tool is not None:  # --preset NAME, which is also a subcommand
                tool = tool.commands.get(word[2:].partition("=")[0], tool)
            yield option and option.name, [word] if alone else [word, rest.pop(0)]
        elif tool is not None and tool.holds_commands:
            tool = tool.commands.get(word)
            yield None, [word]


@cache
def _options(name: str) -> tuple[dict[str, Option], set[str]]:
    """The options of a tool and of all its methods by flag, and the names of the tool's own options."""
    tool = TOOLS.load(name)
    tools = [tool, *tool.commands.values()]
    classes = [cls for one in tools if one.registry is not None for _, cls in one.registry.loaded()]
    own = [option for one in tools for option in one.every_option]
    every = [*method_options(classes).values(), *own]
    return {flag: option for option in every for flag in (*option.flags, *option.off)}, {
        option.name for option in own
    }


def _source(record: Record, later: list[str]) -> list[str]:
    """The options with which rb-arch writes the record's network; empty if it cannot write it."""
    arch = record.get("arch")
    name = arch.get("space") if isinstance(arch, Mapping) else None
    if not isinstance(arch, Mapping) or name in (None, "answers"):
        return []
    code = ["--allow-code"] if "--allow-code" in later else []
    if isinstance(file := record.get("checkpoint_file"), str):
        words = ["--from-checkpoint", PurePath(file).name, *_hints(record, arch), *code]
    elif name in spaces.SPACES and ("index" in arch or "str" in arch):
        listed = [] if name == "nasbench201" else ["--space", name]
        cell = ["--index", str(arch["index"])] if "index" in arch else ["--str", str(arch["str"])]
        sizes = [size for size in spaces.space(name).sizes if size in arch]
        words = [*listed, *cell, *(word for size in sizes for word in (f"--{size}", str(arch[size])))]
    elif "name" in arch:
        words = ["--arch", _named(arch), *(code if name == "python" else [])]
    else:
        return []
    if "--dataset" not in later and isinstance(data := record.get("dataset"), str):
        words += [
            "--dataset",
            ":".join(PurePath(part).name if part[:1] == "/" else part for part in data.split(":")),
        ]
        if isinstance(how := record.get("preprocessing"), str):
            words += _scaling(preprocessing.parse(how))
    return words


def _scaling(how: preprocessing.Preprocessing) -> list[str]:
    """The options of `Preprocessing`: --resize, --crop, --interpolation and --squash."""
    words = [] if how.resize is None else ["--resize", str(how.resize), "--interpolation", how.interpolation]
    return [*words, "--crop", str(how.crop), *(["--squash"] if how.squash else [])]


def _hints(record: Record, arch: Record) -> list[str]:
    """What the user said about the file of weights, as options."""
    known = record.get("recognised")
    facts = known if isinstance(known, Mapping) else {}
    words = ["--arch", _named(arch)] if facts.get("arch_from") == "given" else []
    if facts.get("normalize_from") in ("given", "--normalize"):
        setting = arch.get("normalize") or "none"
        pairs = setting if isinstance(setting, list) else [[setting]]
        words += ["--normalize", " ".join(",".join(map(str, values)) for values in pairs)]
    return words


def _named(arch: Record) -> str:
    variant = [f"{field}={arch[field]}" for field in (*VARIANTS, *SIZES) if field in arch]
    prefix = [] if arch["space"] in ("zoo", "nasbench201") else [str(arch["space"])]
    return ":".join([*prefix, str(arch.get("name")), *variant])

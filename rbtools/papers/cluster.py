"""A recipe on several machines: its pipe for one shard of the records, a file for each shard, and the join.

A recipe is one pipe, and its records are divided once: where they are trained, or else where they are listed.
In place of a record of another shard a line goes through the pipe, so that the files of all shards have a
line for each record, in the order of one process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from rbtools.cli.filter_loop import ELSEWHERE
from rbtools.cli.source import shard
from rbtools.errors import RbError
from rbtools.records import SCHEMA, dumps
from rbtools.store import digest

EVALUATORS = ("attack", "certify", "corrupt", "ge", "measure", "pr")
_FAILED = b'{"schema":%d,"error":' % SCHEMA


def shell_text(pipe: str, jobs: str, part: str | None, *, dry: Path | None = None) -> str:
    """The pipe with workers in every stage and as one shard, `I/N`, of the records.

    A number of jobs is that of trainings, which the recipe has itself: the stages of a pipe run at the same
    time anyway. `auto` and `ray` are for all stages. `dry`: every stage says what it would do, to people and
    in this log, and a search does nothing.
    """
    more = {tool: "" for tool in ("arch", "train", *EVALUATORS)}
    if not jobs.isdigit():
        engine, _, address = jobs.partition(":")
        workers = f" --jobs {jobs}" if engine != "ray" else " --engine ray"
        workers += f" --ray-address {address}" if engine == "ray" and address else ""
        more |= dict.fromkeys(("train", *EVALUATORS), workers)
    if dry is not None:
        say = f" --dry-run --allow-empty --log {shlex.quote(str(dry))}"
        more = {tool: f"{words}{say}" * (tool != "arch") for tool, words in more.items()}
        pipe = f"rb-search() {{ :; }}; {pipe}"
    divided, after, begin = "train" if "rb-train" in pipe else "arch", "", ""
    if part is not None:
        number, of = shard(part)
        # A command with few records, in a loop too, must not give them all to the first shards.
        loops = "".join(f' "${name}"' for name in dict.fromkeys(re.findall(r"\bfor (\w+) in\b", pipe)))
        begin = (
            f'turned() {{ set -- $(printf "%s " "$turn"{loops} | cksum);'
            f" echo $(( ({number} - 1 + $1) % {of} + 1 )); }}; "
        )
        turns = iter(range(pipe.count(f"rb-{divided}")))
        pipe = re.sub(rf"\brb-{divided}\b", lambda found: f"turn={next(turns)} {found[0]}", pipe)
        if divided == "train":
            more["train"] += f' --shard "$(turned)/{of}:places"'
        else:
            other = dumps({"schema": SCHEMA, "error": {"tool": "rb-arch", "message": ELSEWHERE}}).decode()
            after = (
                f" | awk -v of={of} -v mine=\"$(turned)\" -v other='{other.strip()}'"
                " '{ print NR % of == mine % of ? $0 : other }'"
            )
    functions = "".join(
        f'rb-{tool}() {{ command rb-{tool} "$@"{words}{after if tool == "arch" else ""}; }}; '
        for tool, words in more.items()
        if words or (tool == "arch" and after)
    )
    return begin + functions + pipe


def file_of(whole: Path, part: str, recipe: str) -> Path:
    """The file of a shard: NAME-SCALE.2-of-8.RECIPE.jsonl, with eight digits of the recipe, so that what
    another one made is not joined."""
    number, of = shard(part)
    return whole.with_suffix(f".{number}-of-{of}.{digest({'recipe': recipe})[:8]}.jsonl")


def files_of(whole: Path, part: str, recipe: str) -> list[Path]:
    """The files of all shards."""
    _, of = shard(part)
    return [file_of(whole, f"{number}/{of}", recipe) for number in range(1, of + 1)]


def join(parts: Sequence[Path], into: Path) -> None:
    """Write one file of the records of all shards, in the order of one process.

    Raises RbError where the files are not of one run: for a record that no shard has, or several have.
    """
    streams = [part.open("rb") for part in parts]
    try:
        with into.open("wb") as out:
            for number, lines in enumerate(zip_longest(*streams), 1):
                mine = [line for line in lines if line is not None and not _of_another(line)]
                if len(mine) != 1 or None in lines:
                    raise RbError(
                        f"Line {number} of {parts[0]} and the other {len(parts) - 1} shards is in"
                        f" {len(mine)} of them, so that they are not of one run. Expected one. Remove these"
                        " files and run all shards again: what the store has is found."
                    )
                out.write(mine[0])
    finally:
        for stream in streams:
            stream.close()


def _of_another(line: bytes) -> bool:
    return line.startswith(_FAILED) and ELSEWHERE.encode() in line

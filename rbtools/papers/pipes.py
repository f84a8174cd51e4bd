"""Pipes of commands that run as processes without a shell, possibly with workers in every stage or as one
shard.

The records of a recipe are divided into shards once, at the stage that trains networks or, if there is no
such stage, at the stage that lists architectures. A placeholder line replaces each record of another shard,
so the files of all shards have one line for each record, in the order of a single process.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, NamedTuple

import orjson

from rbtools.cli.filter_loop import ELSEWHERE
from rbtools.cli.source import failed_record, shard
from rbtools.errors import RbError
from rbtools.papers.recipes import Command, Pipe
from rbtools.records import SCHEMA, dumps
from rbtools.store import digest

_EVALUATORS = ("rb-attack", "rb-certify", "rb-corrupt", "rb-ge", "rb-measure", "rb-pr")
_NO_READER = ("status 141", "status -13")
_FAILED = b'{"schema":%d,"error":' % SCHEMA
_OTHER = dumps(failed_record("rb-arch", ELSEWHERE)) + b"\n"


class Division(NamedTuple):
    """A stage that passes the lines of one shard and replaces every other line by a placeholder."""

    number: int
    of: int

    def copy(self, lines: IO[bytes], out: IO[bytes]) -> None:
        for number, line in enumerate(lines, 1):
            out.write(line if number % self.of == self.number % self.of else _OTHER)


Stages = list["Command | Division | tuple[Stages, ...]"]  # as they are run


def commands(pipe: Sequence[object]) -> Iterator[Command]:
    for stage in pipe:
        if isinstance(stage, list):
            yield stage
        elif isinstance(stage, tuple) and not isinstance(stage, Division):
            yield from itertools.chain(*map(commands, stage))


def lines(pipe: Pipe, indent: str = "") -> list[str]:
    """The lines of an equivalent shell script; groups of several pipes are in parentheses."""
    stages = []
    for stage in pipe:
        if isinstance(stage, list):
            stages.append([indent + shlex.join(stage)])
        elif len(stage) == 1:
            stages.append(lines(stage[0], indent))
        else:
            inside = [line for one in stage for line in lines(one, f"{indent}  ")]
            stages.append([f"{indent}(", *inside, f"{indent})"])
    for some in stages[:-1]:
        some[-1] += " |"
    return [line for some in stages for line in some]


@dataclass(frozen=True)
class Workers:
    """How the stages of a pipe run. With `jobs` "auto" or "ray[:ADDRESS]", every stage has such workers; a
    number has no effect here, because the recipe already contains it. `part` is the shard, I/N. If `dry` is a
    log file, every stage writes to this file what the stage would compute, and searches are skipped."""

    jobs: str = "1"
    part: str | None = None
    dry: Path | None = None

    def stages(self, pipe: Pipe) -> Stages:
        """The pipe with the options for its workers and its shard."""
        divided = "rb-train" if any(one[0] == "rb-train" for one in commands(pipe)) else "rb-arch"
        return self._stages(pipe, divided, itertools.count())

    def _stages(self, pipe: Pipe, divided: str, turns: Iterator[int]) -> Stages:
        found: Stages = []
        for stage in pipe:
            if not isinstance(stage, list):
                found.append(tuple(self._stages(inside, divided, turns) for inside in stage))
                continue
            command = [*stage, *self._options(stage[0])]
            dry_search = self.dry is not None and stage[0] == "rb-search"
            found.append(() if dry_search else command)
            if self.part is not None and stage[0] == divided:
                # The few records of a command must not all go to the first shards.
                number, of = shard(self.part)
                mine = Division((number - 1 + next(turns)) % of + 1, of)
                if divided == "rb-train":
                    command += ["--shard", f"{mine.number}/{of}", "--placeholders"]
                else:
                    found.append(mine)
        return found

    def _options(self, tool: str) -> list[str]:
        options: list[str] = []
        if tool == "rb-train" or tool in _EVALUATORS:
            engine, _, address = self.jobs.partition(":")
            if engine == "ray":
                options += ["--engine", "ray", *(["--ray-address", address] if address else [])]
            elif not self.jobs.isdigit():
                options += ["--jobs", self.jobs]
            if self.dry is not None:
                options += ["--dry-run", "--allow-empty", "--log", str(self.dry)]
        return options


def run(
    pipe: Stages,
    stdin: int,
    stdout: int,
    env: Mapping[str, str],
    running: list[subprocess.Popen[bytes]] | None = None,
) -> str | None:
    """Run all stages of a pipe at the same time; each stage reads the output of the previous one. The pipes
    of a group run one after another until a pipe fails. Returns a description of the command that failed. A
    command whose reader has ended does not count as failed."""
    running = [] if running is None else running  # including the processes of enclosing groups
    between = [os.pipe() for _ in pipe[1:]]
    reads = [stdin, *(read for read, _ in between)]
    writes = [*(write for _, write in between), stdout]

    def one(stage: Command | Division | tuple[Stages, ...], read: int, write: int) -> str | None:
        try:
            if isinstance(stage, list):
                program = shutil.which(stage[0], path=env["PATH"])
                if program is None:
                    return f"{stage[0]} is not installed"
                process = subprocess.Popen([program, *stage[1:]], stdin=read, stdout=write, env=env)
                running.append(process)
                status = process.wait()
                return f"{stage[0]} ended with status {status}" if status else None
            if isinstance(stage, Division):
                with open(read, "rb", closefd=False) as lines, open(write, "wb", closefd=False) as out:
                    stage.copy(lines, out)
                return None
            failures = (run(inside, subprocess.DEVNULL, write, env, running) for inside in stage)
            return next(filter(None, failures), None)
        finally:
            for end in {read, write} - {stdin, stdout}:
                os.close(end)

    with ThreadPoolExecutor(max(1, len(pipe))) as threads:
        try:
            failures = [*filter(None, threads.map(one, pipe, reads, writes))]
        except BaseException:  # Ctrl-C, or a signal to this process only
            for process in running:
                process.terminate()
            raise
    return min(failures, key=lambda failure: failure.endswith(_NO_READER), default=None)


def planned(log: Path) -> str:
    """The numbers of stored and missing results, from the log that all stages of a dry run wrote."""
    if not log.exists():
        return "no stage ran."
    with log.open("rb") as lines:  # the log has a line for each record of each stage
        events = [event for event in map(orjson.loads, lines) if event["event"] in ("plan", "end")]
    failed = sum(event["event"] == "end" and event["status"] != 0 for event in events)
    plans = [event for event in events if event["event"] == "plan"]
    found, missing = (sum(plan[name] for plan in plans) for name in ("found", "missing"))
    left_out = f" Failed stages, whose work is not included: {failed}." if failed else ""
    return f"in all: {found:,} results in the store, {missing:,} to compute.{left_out}"


def file_of(whole: Path, part: str, pipe: Pipe) -> Path:
    """The path of a shard's file, NAME-SCALE.2-of-8.RECIPE.jsonl. RECIPE is eight digits of the recipe's
    hash, so shards of different recipes are never joined."""
    number, of = shard(part)
    return whole.with_suffix(f".{number}-of-{of}.{digest({'recipe': pipe})[:8]}.jsonl")


def files_of(whole: Path, part: str, pipe: Pipe) -> list[Path]:
    _, of = shard(part)
    return [file_of(whole, f"{number}/{of}", pipe) for number in range(1, of + 1)]


def join(parts: Sequence[Path], out: IO[bytes]) -> None:
    """Write the records of all shards in the order of a single process. Raises RbError if a record is in no
    shard or in several shards, because the files are then not from the same run."""
    with contextlib.ExitStack() as files:
        streams = [files.enter_context(part.open("rb")) for part in parts]
        for number, lines in enumerate(zip_longest(*streams), 1):
            mine = [line for line in lines if line is not None and not _of_another(line)]
            if len(mine) != 1 or None in lines:
                raise RbError(
                    f"{len(mine)} of the files {parts[0]} and {len(parts) - 1} other shards have a record on"
                    f" line {number}, so they are not from the same run. Expected one. Remove these files and"
                    " run all shards again, which reuses the store."
                )
            out.write(mine[0])


def _of_another(line: bytes) -> bool:
    return line.startswith(_FAILED) and ELSEWHERE.encode() in line

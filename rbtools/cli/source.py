"""The source of records: standard input, files, or one checkpoint."""

from __future__ import annotations

import itertools
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TextIO

import orjson

from rbtools.cli.output import RecordWriter, Stop
from rbtools.cli.terminal import Terminal
from rbtools.errors import NoRecords, UsageError
from rbtools.execution import resources
from rbtools.plain_files import streamed
from rbtools.records import SCHEMA, Line, can_be_retried, lines
from rbtools.registry import param, rare_param

_model = partial(param, group="Model")
_running = partial(rare_param, group="Running")
_kept = partial(rare_param, group="Records and store")


@dataclass(frozen=True)
class RecordSource:
    """The records that a tool works on, and how the tool treats lines that are not records.

    `errors` is pass, retry or stop, as in `--errors`. If `merge` is true, a tool that reads all records
    merges records of the same model. If `allow_empty` is true, an input without lines is allowed.
    """

    files: tuple[str, ...] = param((), "", metavar="[FILE]...", positional=True)
    errors: str = _kept(
        "pass",
        "What to do with a bad line or a failed record: pass it on; process a failed record again (retry); or"
        " stop.",
        metavar="[pass|retry|stop]",
    )
    merge: bool = param(
        True,
        "Merge records of the same model; if several records contain the same metric, keep the value from"
        " more images.",
    )
    allow_empty: bool = _kept(
        False, "Exit with status 0 instead of 3 if there are no input records.", flags=("--allow-empty",)
    )
    in_place: bool = _kept(False, "Replace FILE by the records that the tool writes.", flags=("--in-place",))
    shard: str | None = _running(
        None,
        "Compute only every N-th result, starting with the I-th (1/4 to 4/4); with --checkpoint, compute a"
        " share of the batches; auto: the shard of this Slurm task.",
        metavar="I/N",
    )
    placeholders: bool = _running(
        False,
        "With --shard, write a placeholder line for each result of another shard, so that the files of all"
        " shards can be joined line by line.",
        flags=("--placeholders",),
    )
    checkpoint: str | None = _model(
        None,
        "Evaluate this checkpoint instead of records. FILE may also be the name of published weights, which"
        " --download fetches: hf:ORG/NAME[@REVISION], timm:NAME, torchvision:NAME[:WEIGHTS].",
        metavar="FILE",
    )
    arch: str | None = _model(
        None,
        "Architecture of the checkpoint: resnet18, nb201-13714, the string of a cell, torchvision:NAME,"
        " timm:NAME, repo:OWNER/NAME, robustbench:NAME, or python:MODULE:FUNCTION; options select a variant:"
        " preactresnet18:shortcut=input.  [default: recognised from the file]",
        metavar="NAME",
    )
    normalize: str | None = _model(
        None,
        "Normalisation of the checkpoint's inputs, if the file does not contain it: numbers such as"
        " 0.4914,0.4822,0.4465 0.2471,0.2435,0.2616 (which is rice), or cifar10 (125.3,123,113.9 of 255),"
        " imagenet ..., or per-image.  [default: the published normalisation that fits 256 images clearly"
        " best, if any; none for python:]",
        metavar="MEAN STD|none|NAME",
    )
    kind: Any = None  # the model that can only be queried (`queries.base.KindOfModel`), if any
    takes_checkpoint: bool = False  # whether the tool has --checkpoint
    adopt: Callable[[dict[str, Any]], bool] | None = None  # whether to accept an object that is not a record
    table: Callable[[dict[str, Any], int], str] | None = None  # the table of a record for a terminal's width
    reads_ahead: ClassVar[bool] = True  # the lines may be read in another thread

    @property
    def strict(self) -> bool:
        """True if the first bad line or failed record ends the run."""
        return "stop" in self.errors.split(",")

    @property
    def retries(self) -> bool:
        return "retry" in self.errors.split(",")

    @property
    def place(self) -> tuple[int, int]:
        """The number of this shard (from 1) and the number of shards. Raises UsageError."""
        return (1, 1) if self.shard is None else shard(self.shard)

    @property
    def places(self) -> bool:
        """True if a placeholder line is written for each result of another shard."""
        return self.shard is not None and self.placeholders

    def lines(self, screen: Terminal, output: RecordWriter, *, results: int = 1) -> Iterator[Line]:
        """Check input and output, and then yield the lines of this shard.

        `results` is the number of results that the tool computes for each record; shards divide the results.
        Raises UsageError if there is no input, or if input and output are the same file. Raises NoRecords at
        the end if the input contained no lines.
        """
        number, of = self.place
        every = self._any_lines(output)
        if results > 1 or self.places:
            chosen = every if of == 1 else _results_dealt(every, number, of, results, self.places)
        else:
            chosen = itertools.islice(every, number - 1, None, of)
        return chosen if self.adopt is None else map(self._adopted, chosen)

    def _adopted(self, line: Line) -> Line:
        if line.record is not None or self.adopt is None:
            return line
        try:
            content = orjson.loads(line.text)
        except orjson.JSONDecodeError:
            return line
        fits = isinstance(content, dict) and self.adopt(content)
        return line._replace(record=content, problem=None) if fits else line

    def passes(self, record: dict[str, Any]) -> bool:
        """True if a record is written unchanged, because it failed before and is not retried."""
        return "error" in record and not (self.retries and can_be_retried(record))

    def _any_lines(self, output: RecordWriter) -> Iterator[Line]:
        came = False
        for line in self._all_lines(output):
            came = True
            yield line
        if not came and not self.allow_empty:
            raise NoRecords(
                "no records came in. The command that should write them may have failed. If no records are"
                " expected, add --allow-empty."
            )

    def _all_lines(self, output: RecordWriter) -> Iterator[Line]:
        if self.files:
            for name in self.files:
                if name != "-" and output.same_file(name):
                    raise UsageError(f"{name} is both read and written. Write elsewhere, or use --in-place.")
            for name in self.files:
                yield from self._of_file(name)
            return
        if sys.stdin is None or sys.stdin.closed:
            raise UsageError("Standard input is closed. " + self._what_to_give())
        if sys.stdin.isatty():
            raise UsageError("No records were given. " + self._what_to_give())
        if output.same_file(0):
            raise UsageError(
                "Standard input and standard output are the same file. Write elsewhere, or name the file"
                " and use --in-place."
            )
        yield from lines(_bytes(sys.stdin))

    def _of_file(self, name: str) -> Iterator[Line]:
        if name == "-":
            yield from lines(_bytes(sys.stdin))
            return
        try:
            with streamed(name) as stream:
                yield from lines(stream, name)
        except OSError as error:
            weights = self.takes_checkpoint and name.endswith((".pt", ".pth", ".ckpt", ".safetensors"))
            raise UsageError(
                f"Cannot read {name}: {error.strerror}. Expected a file of records, one JSON object per line."
                + " To evaluate a file of weights, use --checkpoint." * weights
            ) from None

    def _what_to_give(self) -> str:
        ways = "Pipe records in (rb-arch --unique --sample 3 | ...), or name a file of records"
        if self.takes_checkpoint:
            return f"{ways}, or evaluate one model with --checkpoint FILE."
        return f"{ways}."


def _results_dealt(
    all_lines: Iterator[Line], number: int, of: int, results: int, places: bool
) -> Iterator[Line]:
    """The lines with results for this shard (with `places`, all lines)."""
    for place, line in enumerate(all_lines):
        mine = tuple(one for one in range(results) if (place * results + one) % of == number - 1)
        if mine or places:
            yield line._replace(results=mine)


def _bytes(stream: TextIO) -> Iterator[bytes]:
    """The lines of a text stream as bytes, so that the encoding of each line can be checked."""
    try:
        handle = os.dup(stream.fileno())
    except (OSError, ValueError, AttributeError):  # a test or an embedding program replaced sys.stdin
        yield from stream.buffer
        return
    # A copy of our own: Python closes sys.stdin at exit, and aborts if a thread still reads from it.
    with open(handle, "rb") as copy:
        yield from copy


def shard(text: str) -> tuple[int, int]:
    """Change `2/8` to (2, 8), and `auto` to the task of the Slurm job. Raises UsageError."""
    if text == "auto":
        task = resources.slurm_task()
        if task is None:
            raise UsageError(
                "--shard is auto, but this is not a task of a Slurm job: neither SLURM_ARRAY_TASK_ID and"
                " SLURM_ARRAY_TASK_COUNT are set, nor (by srun) SLURM_PROCID and SLURM_STEP_NUM_TASKS. Write"
                " --shard I/N."
            )
        return task
    number, slash, of = text.partition("/")
    whole = all(part.isascii() and part.isdigit() and len(part) < 10 for part in (number, of))
    if not (slash and whole and 1 <= int(number) <= int(of)):
        if text.endswith(":places"):
            raise UsageError(f"--shard is '{text}'. Write --shard {text[:-7]} --placeholders.")
        raise UsageError(f"--shard is '{text}'. Expected I/N with I from 1 to N, such as 2/8, or auto.")
    return int(number), int(of)


def name_of(record: Mapping[str, Any]) -> str:
    """The name of a record in messages, made from its architecture, training method and seed."""
    arch, train = (record.get(field) for field in ("arch", "train"))
    name = arch.get("name") or arch.get("str") if isinstance(arch, dict) else None
    method, seed = (train.get("method"), train.get("seed")) if isinstance(train, dict) else (None, None)
    seed = None if seed is None else f"seed {seed}"
    return " ".join(str(part) for part in (name, method, seed) if part) or "unnamed"


def model_of(record: dict[str, Any]) -> str:
    """The name of a record, with the file and the hash of its weights, which distinguish two files of a
    model."""
    file, weights = (record.get(field) for field in ("checkpoint_file", "checkpoint"))
    known = [os.path.basename(file)] if isinstance(file, str) else []
    known += [weights.removeprefix("sha256:")[:8]] if isinstance(weights, str) else []
    return f"{name_of(record)} ({', '.join(known)})" if known else name_of(record)


def where(line: Line) -> str:
    """The place of a line in words, for messages."""
    return f"line {line.number}" if line.source == "standard input" else f"{line.source}: line {line.number}"


def stop_if_strict(strict: bool, message: str) -> None:
    if strict:
        raise Stop(f"{message} The run stopped there because of --errors stop.")


def file_path(path: str) -> str:
    """The absolute path of a user's file, or of the weights in a user's folder; names of published weights
    stay unchanged. Raises UsageError if the file does not exist."""
    if not os.path.isfile(path):
        from rbtools.inputs import published_weights  # imported here because --help does not need it

        if published_weights.is_name(path):
            return path
        path = published_weights.in_folder(path)
    if not os.path.isfile(path):
        if re.match("[a-z]+://", path):
            raise UsageError(
                f"{path} is a URL. Download the file of weights and give its path. If a model answers at this"
                f" URL, use --model-url {path}."
            )
        problem = "is a folder" if os.path.isdir(path) else "does not exist"
        raise UsageError(f"{path} {problem}. Expected a file.")
    return os.path.abspath(path)


def bad_line_record(tool: str, line: Line) -> dict[str, Any]:
    about = {"source": line.source, "line": line.number, "text": line.text.decode("utf-8", "replace")}
    return failed_record(tool, f"{where(line)} {line.problem}", **about)


def has_input() -> bool:
    """Whether standard input is a pipe or a file, and neither a terminal nor a device such as /dev/null."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # a test or an embedding program replaced sys.stdin
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def failed_record(tool: str, message: str, **about: object) -> dict[str, Any]:
    """A record with an error. Unpaired surrogates, as in a file name that is not UTF-8, are escaped."""
    error = {"tool": tool, "message": message, **about}
    for key, value in error.items():
        if isinstance(value, str):
            error[key] = value.encode("utf-8", "backslashreplace").decode()
    return {"schema": SCHEMA, "error": error}


def read_all(source: RecordSource, screen: Terminal, output: RecordWriter) -> Iterator[Line]:
    """All lines. Bad lines are yielded with their problem and reported on stderr."""
    for line in source.lines(screen, output):
        if line.record is None:
            message = f"{where(line)} {line.problem}"
            stop_if_strict(source.strict, message)
            if not line.continues:
                screen.wrong_line(message)
        yield line

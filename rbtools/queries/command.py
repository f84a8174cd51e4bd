"""Models behind a command: a program that reads batches of images and writes one JSON line per image."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import shlex
import signal
import subprocess
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from rbtools.errors import RbError, one_line, shown
from rbtools.queries.base import BatchAnswers, KindOfModel, ModelFailure, Service, answers_of
from rbtools.queries.wire import as_npy, parsed

if TYPE_CHECKING:
    from rbtools.execution.run import Access
    from rbtools.lazy import np

_CHUNK = 1 << 16  # bytes of one read or write, and the capacity of a pipe
_LONGEST = 1 << 24  # bytes of one line
_KEPT = 2_000  # last bytes of the program's standard error that are kept
_SHOWN = 300  # last characters of these that a message contains
_SETTLE = 50  # milliseconds to wait for surplus lines
_GRACE = 0.5  # seconds that a program has to end by itself
# Waits until this process ends in any way, even by SIGKILL, and then kills the program and its children.
_GUARD = 'read -r line; sleep 1; kill -s KILL -- "-$0" 2>/dev/null'
_ONLY = "Expected one line of JSON for each image, and messages on standard error only."


@dataclass(frozen=True, kw_only=True)
class CommandModel(KindOfModel):
    """A program that keeps running between batches. It is started without a shell, in its own session."""

    name = "command"
    flag = "--model-cmd"
    metavar = "COMMAND"
    help = (
        "Evaluate a program that reads .npy arrays of images from standard input and writes a JSON line for"
        ' each image, such as {"label": 3} or {"logits": [...]}.'
    )

    def __post_init__(self) -> None:
        try:
            words = shlex.split(self.text)
        except ValueError as wrong:
            raise RbError(f"The command {shown(self.text)} is incomplete: {wrong}.") from None
        if not words or "\0" in self.text:
            raise RbError("The command contains no program. Expected a command such as 'python3 answer.py'.")

    def open(self, access: Access) -> Service:
        return CommandService(self.text, access.timeout)


class CommandService:
    """Queries a program. If the program fails, it is restarted, and the same batch is sent once more."""

    def __init__(self, text: str, timeout: float) -> None:
        self.text, self.timeout = text, timeout
        self.program = RunningProgram(shlex.split(text))

    def ask(self, images: np.ndarray) -> BatchAnswers:
        data, failure = as_npy(images), ModelFailure("")
        for _ in range(2):
            if not self.program.end.alive:
                self.program = RunningProgram(shlex.split(self.text))
            try:
                if self.program.asked:
                    self.program.refuse_more()
                answers = answers_of(self.program.answers(data, len(images), self.timeout), len(images))
                self.program.refuse_more()
                return answers
            except ModelFailure as wrong:
                self.close()
                failure = wrong
        errors = one_line(self.program.errors.decode("utf-8", "replace").strip())[-_SHOWN:]
        said = f" Its standard error ends with: {errors}" if errors else ""
        raise ModelFailure(
            f"{shown(self.text)} did not answer for image {failure.image + 1} of the {len(images)} that it"
            f" received, even after it was restarted. {failure}{said}",
            failure.image,
        )

    def close(self) -> None:
        self.program.end()


class RunningProgram:
    """A running program. `errors` is the end of its standard error; `end` stops it and its children."""

    def __init__(self, words: Sequence[str]) -> None:
        pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        try:
            self.process = subprocess.Popen(words, bufsize=0, start_new_session=True, **pipes)
        except OSError as wrong:
            raise RbError(
                f"Cannot start {shown(words[0])}: {wrong.strerror}. The command runs without a shell, so"
                " write a pipeline as sh -c 'FIRST | SECOND'."
            ) from None
        # The guard keeps no pipe of this process open, because the reader of its output would wait.
        pipes |= dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        words = ["sh", "-c", _GUARD, str(self.process.pid)]
        self.guard = subprocess.Popen(words, bufsize=0, start_new_session=True, **pipes)
        for stream in _streams(self.process):
            os.set_blocking(stream.fileno(), False)
        self.stdin, self.stdout, self.stderr = (stream.fileno() for stream in _streams(self.process))
        self.errors, self.rest, self.asked = bytearray(), bytearray(), False
        self.end = weakref.finalize(self, _end, self.process, self.guard, self.errors)
        self.end.atexit = False  # the guard does it, and a forked copy of this process must not

    def answers(self, data: bytes, count: int, timeout: float) -> list[Any]:
        """The values of the lines that the program writes after it receives the data of `count` images.

        Raises ModelFailure if the program ends, if no line comes for `timeout` seconds, or if a line is
        not JSON.
        """
        found: list[Any] = []
        left, deadline = memoryview(data), monotonic() + timeout
        with selectors.DefaultSelector() as ready:
            ready.register(self.stdin, selectors.EVENT_WRITE)
            ready.register(self.stdout, selectors.EVENT_READ)
            ready.register(self.stderr, selectors.EVENT_READ)
            while len(found) < count or (left and len(found) == count):
                events = ready.select(max(deadline - monotonic(), 0))
                for key, _ in events:
                    if key.fd == self.stdin:
                        left = left[_written(self.stdin, left[:_CHUNK]) :]
                        if not left:
                            ready.unregister(self.stdin)
                    elif key.fd == self.stdout:
                        lines = self._lines(len(found))
                        found += [_answer(line, number) for number, line in enumerate(lines, len(found))]
                        deadline = monotonic() + timeout if lines else deadline
                    elif not _kept(self.stderr, self.errors):
                        ready.unregister(self.stderr)
                if monotonic() >= deadline:
                    raise ModelFailure(
                        f"The program gave {len(found)} answers for {count} images, but then nothing for"
                        f" {timeout:g} seconds. If it needs more time, raise --timeout.",
                        min(len(found), count - 1),
                    )
        return found

    def refuse_more(self) -> None:
        """Raise ModelFailure if the program wrote more than its answers.

        Such programs do this from the first batch on, so the method waits for further lines only once.
        """
        poll = select.poll()
        poll.register(self.stdout, select.POLLIN)
        poll.poll(0 if self.asked else _SETTLE)
        self.asked = True
        surplus = (self.rest + (_read(self.stdout) or b"")).strip()
        if surplus:
            quoted = shown(repr(surplus[:200].decode("utf-8", "replace")), 80)
            raise ModelFailure(f"The program wrote {quoted} in addition to its answers. {_ONLY}")

    def _lines(self, number: int) -> list[bytearray]:
        """The non-empty lines that the program has written. Raises ModelFailure if its output has ended."""
        chunk = _read(self.stdout)
        if chunk == b"":
            raise ModelFailure(f"The program {_ending(self.process)}.", number)
        self.rest += chunk or b""
        if len(self.rest) > _LONGEST:
            raise ModelFailure(f"The program wrote a line of more than {_LONGEST} bytes. {_ONLY}", number)
        if b"\n" not in (chunk or b""):
            return []
        *lines, rest = self.rest.split(b"\n")
        self.rest = rest
        return [line for line in lines if line.strip()]


def _answer(line: bytearray, number: int) -> Any:
    try:
        return parsed(line, number)
    except ModelFailure as wrong:
        raise ModelFailure(f"{wrong} {_ONLY}", number) from None


def _streams(process: subprocess.Popen[bytes]) -> list[IO[bytes]]:
    return [stream for stream in (process.stdin, process.stdout, process.stderr) if stream is not None]


def _read(pipe: int) -> bytes | None:
    """The available bytes of a pipe: None if there are none now, and b"" if the pipe has ended."""
    try:
        return os.read(pipe, _CHUNK)
    except BlockingIOError:
        return None


def _written(pipe: int, data: memoryview) -> int:
    """The number of bytes that a pipe accepted. If the program has stopped reading, this is all of them."""
    try:
        return os.write(pipe, data)
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return len(data)


def _kept(pipe: int, errors: bytearray) -> bool:
    """Keep the end of what a program wrote to standard error. Returns False if the pipe has ended."""
    chunk = _read(pipe)
    errors += chunk or b""
    del errors[:-_KEPT]
    return chunk != b""


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        return "closed its standard output"
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def _end(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes], errors: bytearray) -> None:
    """Stop a program, its children and its guard. Its input is closed first, so that it can end by itself."""
    stdin, _, stderr = _streams(process)
    stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    guard.kill()
    guard.wait()
    _kept(stderr.fileno(), errors)
    for stream in (*_streams(process), *_streams(guard)):
        stream.close()

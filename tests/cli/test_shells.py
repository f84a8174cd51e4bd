"""Tab in real shells, through a pseudo-terminal, with the completions where `make install` puts them."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPLETIONS = ROOT / "completions"
READY = "ready> "
SHELLS = {
    # A user's own start-up files are left out; what an installation provides is loaded.
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
START = {
    "bash": f"PS1='{READY}'; source '{COMPLETIONS}/rbtools.bash'",
    "zsh": f"PS1='{READY}'; fpath=('{COMPLETIONS}' $fpath); autoload -Uz compinit; compinit -u -D",
    "fish": f"function fish_prompt; printf '{READY}'; end; source '{COMPLETIONS}/rbtools.fish'",
}


class Terminal:
    """A shell with its own terminal: type into it, and read its output."""

    def __init__(self, shell: str) -> None:
        environment = {**os.environ, "TERM": "xterm", "HOME": os.getcwd(), "LC_ALL": "C.UTF-8"}
        self.child, self.handle = pty.fork()
        if self.child == 0:
            os.execvpe(SHELLS[shell][0], SHELLS[shell], environment)
        self.shown = ""
        self.type(START[shell] + "\r")
        self.wait_for(rf"{READY}\Z", after=START[shell][-12:])

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self.handle, text.encode())

    def wait_for(self, pattern: str, after: str = "", seconds: float = 120.0) -> str:
        """Wait until the output since the last input matches the pattern (after some words), and return
        it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            plain = re.sub(
                r"\x1b(\[[0-9;?>=]*[a-zA-Z]|[()][B0]|[=>]|\][^\a]*\a)|[\r\x0e\x0f\a]", "", self.shown
            )
            if re.search(pattern, plain.rpartition(after)[2] if after else plain):
                return plain
            if select.select([self.handle], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.shown += os.read(self.handle, 65536).decode("utf-8", "replace")
        pytest.fail(f"never saw {pattern!r} in {self.shown!r}")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.close(self.handle)


@pytest.fixture(params=SHELLS)
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    if not shutil.which(request.param):
        pytest.skip(f"needs {request.param}")
    Path("photos/test").mkdir(parents=True)
    Path("results.jsonl").touch()
    opened = Terminal(request.param)
    try:
        yield opened
    finally:
        opened.close()


# The input before Tab, and the line after it.
CASES = {
    "an attack": ("rb-attack squ", "rb-attack square"),
    "an option": ("rb-attack pgd --restar", "--restarts"),
    "a choice": ("rb-attack pgd --norm li", "--norm linf"),
    "a corruption": ("rb-corrupt bright", "rb-corrupt brightness"),
    "a file": ("rb-rank resul", "rb-rank results.jsonl"),
    "a command of a command": ("rb-store verif", "rb-store verify"),
}


def test_tab_completes_in_a_real_shell(terminal: Terminal) -> None:
    for typed, wanted in CASES.values():
        terminal.type(typed + "\t")
        terminal.wait_for(re.escape(wanted))
        terminal.type("\x15")  # discard the line: Ctrl-U
        terminal.wait_for("")

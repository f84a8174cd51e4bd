"""The answers of models in a store: kept at once, by several processes, and checked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rbtools.errors import RbError
from rbtools.store import Store, upkeep
from rbtools.store.kept_answers import KeptAnswers
from tests.runner import run

NAME = "ab" * 32
ABOUT = {"kind": "command", "name": "answer", "model_pixels": "uint8"}


def kept_in(folder: Path) -> KeptAnswers:
    return KeptAnswers(Store(folder).answers_file(NAME), ABOUT)


def test_answers_are_kept_for_another_process(tmp_path: Path) -> None:
    answers = {bytes([number]) * 16: bytes([number]) for number in range(200)}
    first, second = kept_in(tmp_path), kept_in(tmp_path)
    first.keep(answers)
    assert second.of([*answers, b"x" * 16]) == answers
    second.keep({b"\0" * 16: b"other"})  # the first answer of an image counts
    assert first.of([b"\0" * 16]) == {b"\0" * 16: b"\0"}
    assert first.about() == (ABOUT, 200)
    first.close()
    second.close()


def test_many_images_are_asked_for_at_once(tmp_path: Path) -> None:
    answers = {number.to_bytes(16, "big"): b"a" for number in range(1200)}
    kept = kept_in(tmp_path)
    kept.keep(answers)
    assert kept.of([*answers]) == answers
    kept.close()


def test_a_killed_process_leaves_what_it_kept(tmp_path: Path) -> None:
    code = f"""
import sys
from rbtools.store import Store
from rbtools.store.kept_answers import KeptAnswers
kept = KeptAnswers(Store({str(tmp_path)!r}).answers_file({NAME!r}), {ABOUT!r})
for number in range(10**6):
    kept.keep({{number.to_bytes(16, "big"): b"a"}})
    print(number, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 20:
        pass
    os.kill(process.pid, signal.SIGKILL)
    *_, last = [20, *map(int, process.communicate()[0].split())]
    kept = kept_in(tmp_path)
    assert len(kept.of([number.to_bytes(16, "big") for number in range(last + 1)])) == last + 1
    kept.close()
    assert [found.problem for found in upkeep.verify(Store(tmp_path))] == [None]


def test_a_damaged_file_is_found_and_told(tmp_path: Path) -> None:
    kept = kept_in(tmp_path)
    kept.keep({bytes([number]) * 16: b"a" * 500 for number in range(250)})
    kept.close()
    path = Store(tmp_path).answers_file(NAME)
    assert path is not None
    content = bytearray(path.read_bytes())
    content[5000:9000] = b"?" * 4000
    path.write_bytes(content)
    (found,) = upkeep.verify(Store(tmp_path))
    assert found.problem is not None and "rb-store verify --delete" in found.problem
    path.write_bytes(b"no database")
    with pytest.raises(RbError, match="cannot be used"):
        kept_in(tmp_path)
    done = run("store", f"verify --delete --store {tmp_path}")
    assert json.loads(done.stdout)["deleted"] is True
    kept_in(tmp_path).close()

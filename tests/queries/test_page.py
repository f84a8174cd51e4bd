"""docs/answering.md: the three programs that the page shows answer as it says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rbtools.execution.run import Access
from rbtools.queries.command import CommandModel

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "answering.md").read_text("utf-8")
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("name", ["answer.py", "answer.cpp", "answer.sh"])
def test_a_program_of_the_page_answers_batch_after_batch(name: str) -> None:
    (text,) = re.findall(rf"^```\w+\n((?:#|//) {name}\n.*?)^```$", PAGE, re.M | re.S)
    Path(name).write_text(text)
    command = {"answer.py": f"{shlex.quote(sys.executable)} answer.py", "answer.sh": "sh answer.sh"}.get(name)
    if command is None:
        compiler = shutil.which("g++") or shutil.which("c++")
        if compiler is None:
            pytest.skip("there is no compiler of C++")
        subprocess.run([compiler, "-o", "answer", name], check=True)
        command = "./answer"
    service = CommandModel(text=command).open(Access())
    for images in (IMAGES, IMAGES[:1]):
        assert service.ask(images).values.tolist() == (images[:, 0, 0, 0] % 10).tolist()
    service.close()

"""rbtools/queries/command.py: a program that is kept, and started again once if it fails."""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rbtools.errors import RbError
from rbtools.execution.run import Access
from rbtools.queries.base import ModelFailure, Service
from rbtools.queries.command import CommandModel

# The label is the first pixel modulo 10. Without numpy, which takes long to load.
PROGRAM = """
import ast, json, math, os, sys, time

BEGIN
pids = open("pids", "a")
pids.write(f"{os.getpid()}\\n")
pids.close()
starts = len(open("pids").readlines())
batches = 0
while begin := sys.stdin.buffer.read(10):
    assert begin[:8] == b"\\x93NUMPY\\x01\\x00"
    about = ast.literal_eval(sys.stdin.buffer.read(int.from_bytes(begin[8:], "little")).decode())
    shape, size = about["shape"], int(about["descr"][-1])
    data = sys.stdin.buffer.read(size * math.prod(shape))
    batches += 1
    for number in range(shape[0]):
        label = data[number * size * math.prod(shape[1:])] % 10
        row = [float(one == label) for one in range(10)]
        EACH
        print(ANSWER, flush=True)
    AFTER
"""
LABEL, LOGITS = 'json.dumps({"label": label})', 'json.dumps({"logits": [2 * one - 1 for one in row]})'
IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = (IMAGES[:, 0, 0, 0] % 10).tolist()


def program(answer: str = LABEL, begin: str = "", each: str = "", after: str = "") -> str:
    text = PROGRAM.replace("ANSWER", answer).replace("BEGIN", begin)
    Path("answer.py").write_text(text.replace("EACH", each or "pass").replace("AFTER", after or "pass"))
    return f"{shlex.quote(sys.executable)} -S answer.py"


@pytest.fixture
def opened() -> Iterator[Callable[..., Service]]:
    """Opens a command, and closes it after the test."""
    services: list[Service] = []

    def made(command: str, timeout: float = 60.0, **options: str) -> Service:
        services.append(CommandModel(text=command, **options).open(Access(timeout=timeout)))
        return services[-1]

    yield made
    for service in services:
        service.close()
        service.close()  # a second time does nothing


def pids() -> list[int]:
    return [int(line) for line in Path("pids").read_text().split()]


def seconds(failing: str) -> float:
    """The time that a test waits for a program that hangs; other programs have a minute."""
    return 2.0 if failing in ("time.sleep(600)", "continue", "break") else 60.0


def is_gone(pid: int) -> bool:
    """Wait until a process has ended, which also a killed one does not do at once."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True  # its parent, which a test cannot choose, has not looked yet
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


Open = Callable[..., Service]


def test_labels_logits_and_probabilities(opened: Open) -> None:
    labels = opened(program()).ask(IMAGES)
    assert labels.form == "label" and labels.values.dtype == np.int64 and labels.values.tolist() == LABELS

    one_hot = np.eye(10, dtype=np.float32)[LABELS]
    logits = opened(program(LOGITS)).ask(IMAGES)
    assert logits.form == "logits" and logits.values.dtype == np.float32
    assert np.array_equal(logits.values, 2 * one_hot - 1)

    probs = opened(program('json.dumps({"probs": row})')).ask(IMAGES)
    assert probs.form == "probs" and np.array_equal(probs.values, one_hot)


def test_a_program_is_started_once_and_asked_batch_after_batch(opened: Open) -> None:
    service = opened(program())
    for start in range(0, 12, 5):
        assert service.ask(IMAGES[start : start + 5]).values.tolist() == LABELS[start : start + 5]
    assert len(pids()) == 1


def test_what_is_sent_is_an_array_of_8_bits_or_of_float32(opened: Open) -> None:
    note = "open('sent', 'a').write(str(about) + chr(10))"
    service = opened(program(each=note))
    service.ask(IMAGES[:2].transpose(0, 2, 1, 3))
    service.ask((IMAGES[:1] / 255).astype(np.float32))
    assert list(map(ast.literal_eval, Path("sent").read_text().splitlines())) == [
        *[{"descr": "|u1", "fortran_order": False, "shape": (2, 8, 8, 3)}] * 2,
        {"descr": "<f4", "fortran_order": False, "shape": (1, 8, 8, 3)},
    ]


def test_batches_larger_than_every_pipe_do_not_wait_for_each_other(opened: Open) -> None:
    """The program writes answers while it reads, and much to standard error."""
    images = np.zeros((3000, 32, 32, 3), np.uint8)
    text = (
        "import sys; sys.stdin.buffer.read(100)\n"
        "for _ in range(3000):\n"
        '    print(\'{"probs": [\' + ", ".join(["0.125"] * 8) + "]}", file=sys.stdout)\n'
        "    sys.stderr.write('x' * 200); sys.stdin.buffer.read(3072)\n"
        "sys.stdin.buffer.read(28); sys.stdout.flush(); sys.stdin.read()\n"
    )
    Path("streams.py").write_text(text)
    service = opened(f"{shlex.quote(sys.executable)} streams.py")
    assert service.ask(images).values.shape == (3000, 8)


@pytest.mark.parametrize(
    "failing",
    [
        "sys.exit(3)",
        "time.sleep(600)",
        "break",
        "print('{')",
        "print('[1]')",
        "print('true')",
        "print('{\"label\": -1}')",
        "print('{\"logits\": [NaN, 1]}')",
        'print(\'{"label": 1, "probs": [1.0]}\')',
        "print('x' * (1 << 25))",
        "os.kill(os.getpid(), 9)",
    ],
)
def test_a_program_that_fails_once_is_started_again_and_asked_again(opened: Open, failing: str) -> None:
    service = opened(
        program(each=f"if starts == 1 and batches == 2 and number == 3: {failing}"), seconds(failing)
    )
    assert service.ask(IMAGES[:6]).values.tolist() == LABELS[:6]
    assert service.ask(IMAGES[6:]).values.tolist() == LABELS[6:]
    assert service.ask(IMAGES[:6]).values.tolist() == LABELS[:6]
    assert len(pids()) == 2 and is_gone(pids()[0])


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (
            "sys.exit('the disk is full')",
            r"ended with status 1\. Its standard error ends with: the disk is full$",
        ),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("time.sleep(600)", "gave 3 answers for 6 images, but then nothing for 2 seconds"),
        ("continue", "gave 5 answers for 6 images, but then nothing"),
        ("print('{')", r"answered with '{', which is not JSON\. Expected one line"),
        ("print('{\"label\": NaN}')", r"the label nan\. Expected a class number"),
        ("os.close(1); time.sleep(600)", "closed its standard output"),
    ],
)
def test_a_program_that_always_fails_is_an_error_that_names_the_image(
    opened: Open, failing: str, message: str
) -> None:
    service = opened(program(each=f"if number == 3: {failing}"), seconds(failing))
    with pytest.raises(ModelFailure, match=message) as wrong:
        service.ask(IMAGES[:6])
    image = 5 if failing == "continue" else 3
    assert wrong.value.image == image and "even after it was restarted" in str(wrong.value)
    assert f"image {image + 1} of the 6" in str(wrong.value) and "answer.py" in str(wrong.value)
    assert len(pids()) == 2 and all(map(is_gone, pids()))

    assert service.ask(IMAGES[:3]).values.tolist() == LABELS[:3]  # the next question starts it


def test_only_the_end_of_standard_error_is_kept_and_shown(opened: Open) -> None:
    service = opened(program(each="sys.stderr.write('x' * 5000 + '\\x1b[31m the end'); sys.exit(1)"))
    with pytest.raises(ModelFailure) as wrong:
        service.ask(IMAGES)
    assert len(str(wrong.value)) < 800 and str(wrong.value).endswith("x\\x1b[31m the end")


@pytest.mark.parametrize("text", ["Loading the model", '{"label": 1}'])
def test_a_banner_is_an_error_that_says_where_messages_belong(opened: Open, text: str) -> None:
    service = opened(program(begin=f"print({text!r}, flush=True)"))
    with pytest.raises(ModelFailure, match=r"standard error only|13 answers for 12 images"):
        for _ in range(20):  # a busy machine may let the last answer come later
            service.ask(IMAGES)


def test_a_line_after_a_batch_is_an_error(opened: Open) -> None:
    service = opened(program(after="print('done', flush=True); print('', flush=True)"))
    with pytest.raises(ModelFailure, match="done"):
        for _ in range(20):
            service.ask(IMAGES)


def test_a_program_for_one_batch_is_started_for_each(opened: Open) -> None:
    service = opened(program(after="break"))
    assert [service.ask(IMAGES).values.tolist() for _ in range(3)] == [LABELS] * 3
    assert len(pids()) == 3


CHILD = "import subprocess; subprocess.Popen(['sleep', '600'], stdin=-3, stdout=-3, stderr=-3)"


def group(pid: int) -> bool:
    """Whether a process of this group runs."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, 0)
        return True
    return False


def ends(pid: int) -> bool:
    """Whether all processes of a group end."""
    for _ in range(600):
        if not group(pid):
            return True
        time.sleep(0.05)
    return False


def test_children_of_a_program_end_with_it(opened: Open) -> None:
    service = opened(program(begin=CHILD, after="sys.stdin.close(); time.sleep(600)"))
    service.ask(IMAGES)
    service.close()
    assert ends(pids()[0])

    service = opened(f"sh -c 'cat | {program(begin=CHILD)}; true'")
    assert service.ask(IMAGES).values.tolist() == LABELS
    service.close()
    assert ends(os.getpgid(pids()[-1]) if group(pids()[-1]) else pids()[-1])


OWNER = """
import os, sys, time
import numpy as np
from rbtools.execution.run import Access
from rbtools.queries.command import CommandModel

service = CommandModel(text=sys.argv[1]).open(Access())
service.ask(np.zeros((1, 2, 2, 1), np.uint8))
print("asked", flush=True)
END
"""


@pytest.mark.parametrize("end", ["pass", "os._exit(0)", "SIGINT", "SIGTERM", "SIGKILL"])
def test_a_program_ends_with_the_process_that_started_it(end: str) -> None:
    """It has a child, and does not end by itself when its input ends."""
    code = OWNER.replace("END", "time.sleep(600)" if end.startswith("SIG") else end)
    command = program(begin=CHILD, after="time.sleep(600)")
    owner = subprocess.Popen([sys.executable, "-c", code, command], stdout=-1, stderr=-1, text=True)
    assert owner.stdout is not None and owner.stdout.readline() == "asked\n"
    if end.startswith("SIG"):
        owner.send_signal(signal.Signals[end])
    owner.communicate(timeout=60)
    assert ends(pids()[0])


def test_a_service_that_nobody_holds_ends_its_program() -> None:
    service = CommandModel(text=program(begin=CHILD)).open(Access())
    service.ask(IMAGES)
    del service
    assert ends(pids()[0])


def test_a_shell_is_only_there_if_it_is_named(opened: Open) -> None:
    # The header of 128 bytes ends "'shape': (12, 8, 8, 3), }", then come 2304 bytes.
    head = """head -c 128 | tr -dc '0-9a-z,( ' | sed 's/.*shape. *(//; s/,.*//'"""
    lines = f"n=$({head}); head -c $((n * 192)) | wc -c >> read\nseq $n | sed 's/.*/{{\"label\": 7}}/'\n"
    Path("answer.sh").write_text(lines)
    assert opened("sh answer.sh").ask(IMAGES).values.tolist() == [7] * 12
    piped = f"sh -c {shlex.quote(Path('answer.sh').read_text())}"
    assert opened(piped).ask(IMAGES).values.tolist() == [7] * 12


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "contains no program"),
        ("   ", "contains no program"),
        ("python3 'answer.py", "is incomplete: No closing quotation"),
        ("a\0b", "contains no program"),
    ],
)
def test_a_command_that_is_none_is_refused(command: str, message: str) -> None:
    with pytest.raises(RbError, match=message):
        CommandModel(text=command)


def test_a_program_that_is_not_there_or_may_not_run_is_an_error() -> None:
    with pytest.raises(RbError, match=r"Cannot start \./nothing: No such file"):
        CommandModel(text="./nothing | cat").open(Access())
    Path("text").write_text("no program")
    with pytest.raises(RbError, match="Permission denied"):
        CommandModel(text="./text").open(Access())

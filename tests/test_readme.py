"""Every command that the README, docs/ or a help text shows is parsed, and run as typed in the slow tests."""

from __future__ import annotations

import html
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import rbtools
from rbtools import datasets
from rbtools.cli import tools
from rbtools.cli.docs import manual
from rbtools.cli.docs import pages as prose
from rbtools.datasets import NORMALIZATIONS, digits
from rbtools.inputs import data
from rbtools.models import build
from tests.runner import parsed

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")
# In the order of the site: a page may use what the README's commands have written.
PAGES = re.findall(r"^ +- .*: ([a-z-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.M)
TEXT_OF = {page: (ROOT / "docs" / page).read_text("utf-8") for page in PAGES[1:]} | {"index.md": README}
TEXT = "\n".join(TEXT_OF[page] for page in PAGES)
# The commands of a block, and the output that the page shows below them.
OUTPUTS = {
    page: re.findall(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text, re.M | re.S)
    for page, text in TEXT_OF.items()
}
# A test of a page runs all its commands, and compares what they print where the page shows it.
SHOWN = [page for page in PAGES if any(shown for _, shown in OUTPUTS[page])]
SILENT = [page for page in PAGES if OUTPUTS[page] and page not in SHOWN]
CLASSES = "airplane automobile bird cat deer dog frog horse ship truck".split()


def files_of_a_user(folder: Path, **scaling: Any) -> None:
    """`photos`, small drawings of ten classes, `model.pt`, a ResNet-18 that is right on them.

    With `scaling` (resize=32, crop=32), the drawings have mixed sizes and are scaled for the network.

    BatchNorm's statistics are those of the drawings, and the last layer interpolates their labels: nothing is
    trained, and no command has a cause for a warning.
    """
    for split in ("train", "test"):
        for number, name in enumerate(CLASSES):
            class_folder = folder / "photos" / split / name
            class_folder.mkdir(parents=True)
            for copy in range(2):
                image = Image.linear_gradient("L").resize((8, 8)).rotate(36 * number + 18 * copy)
                drawn = Image.merge("RGB", [image, image.rotate(90), image.rotate(180)])
                if scaling:
                    drawn = drawn.resize((40 + number, 50 - 9 * copy))
                drawn.save(class_folder / f"{copy}.jpg")
    torch.save(fitted(folder / "photos", **scaling).state_dict(), folder / "model.pt")


@torch.no_grad()
def fitted(photos: Path, **scaling: Any) -> torch.nn.Module:
    """A ResNet-18 with random filters that gives each image its label."""
    images, labels = drawings(photos, **scaling)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in NORMALIZATIONS["cifar10"])
    images = (images - mean) / std
    torch.manual_seed(0)
    network: Any = build({"space": "zoo", "name": "resnet18"}, classes=10, shape=images.shape[1:])
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # statistics of all batches: here of one
    network.train()(images)
    head, network.linear = network.linear, torch.nn.Identity()
    interpolate(head, network.eval()(images), labels)
    network.linear = head
    return network


def drawings(photos: Path, **scaling: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The images (N, 3, 8, 8) of both splits in [0, 1], and their labels."""
    splits = [datasets.load(f"imagefolder:{photos}", split, **scaling) for split in ("train", "test")]
    return torch.cat([split.images[:] for split in splits]) / 255, torch.cat([one.labels for one in splits])


@torch.no_grad()
def interpolate(head: Any, features: torch.Tensor, labels: torch.Tensor) -> None:
    """Give a last layer the weights that are right on these features."""
    wanted = torch.nn.functional.one_hot(labels).double()
    head.weight.copy_((10 * torch.linalg.pinv(features.double()) @ wanted).T)
    head.bias.zero_()


def weights_of_own_code(photos: Path) -> None:
    """`my.pt` for the network of docs/checkpoints.md, whose file is in the current folder."""
    torch.manual_seed(0)
    images, labels = drawings(photos)
    network = importlib.import_module("mynet").MyNet(len(CLASSES))
    interpolate(network.head, network.features(images), labels)
    torch.save(network.state_dict(), "my.pt")


@pytest.fixture
def _files_of_a_user() -> None:
    files_of_a_user(Path())


@pytest.fixture
def _few_digits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands in this process train on one digit in nine: none of them says how many there are.

    A process remembers the images that it loaded, under a name that these few share with all.
    """
    load, one_in = digits.Digits.load, 9

    def few(source: digits.Digits, split: str) -> datasets.Dataset:
        found = load(source, split)
        if split == "test":
            return found
        return replace(found, images=found.images[::one_in], labels=found.labels[::one_in])

    monkeypatch.setattr(digits.Digits, "load", few)
    monkeypatch.setitem(digits.SIZES, "train", len(range(0, digits.SIZES["train"], one_in)))
    data._loaded.cache_clear()
    yield
    data._loaded.cache_clear()


def blocks(language: str, text: str = TEXT) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
    return [block for name, block in fenced if name == language]


def commands(block: str) -> list[str]:
    """The commands of a block; one goes on in the next line after a pipe or a backslash."""
    found: list[str] = []
    open_ = False
    for line in block.splitlines():
        if open_:
            found[-1] += "\n" + line
        elif line.strip():
            found.append(line)
        open_ = line.rstrip().endswith(("|", "\\"))
    return found


# Warnings that are right: two trainings of two epochs may be equally robust; the store holds several
# evaluations of one model; scores of one or two records tell little.
EXPECTED = (
    " s of the limit are left.",  # rb-card --time leaves out a part on a slow machine
    " s ended before its first result.",
    "there is only one record, so it scores .5",
    "with two records, each metric is 1 for the better",
    "all records have the same",
    "merged with an earlier one of the same model",
)


def refuse_complaints(command: str, stderr: str) -> None:
    complaints = [line for line in stderr.splitlines() if not any(words in line for words in EXPECTED)]
    assert not any(word in line for line in complaints for word in ("error", "warning")), (
        f"$ {command}\n{stderr}"
    )


def in_a_shell(command: str) -> subprocess.CompletedProcess[str]:
    """A command that must end with status 0, and without a complaint."""
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    refuse_complaints(command, done.stderr)
    return done


def records(text: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all("error" not in record for record in found)
    return found


def check(command: str, shown: str) -> None:
    """A command writes the file that it names, or prints; records are JSON without an error."""
    drawn, into = re.search(r" -o (\S+)", command), re.search(r" > (\S+)$", command)
    if "rb-plot" in command:
        assert shown == "" and drawn and Path(drawn[1]).stat().st_size > 1000
    elif into:
        assert shown == "" and (into[1] == os.devnull or records(Path(into[1]).read_text("utf-8")))
    elif "--write" in command:
        assert shown == ""
    elif "--format" in command or "wc -l" in command or "python3" in command:
        assert shown.strip()
    else:
        assert records(shown)


def modules() -> dict[str, str]:
    """The blocks of Python that are files: their first line is a comment with the name."""
    return {name[1]: block for block in blocks("python") if (name := re.match(r"# (\w+\.py)\n", block))}


@pytest.fixture
def _own_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files of Python that pages show, where a command in this process finds them, too."""
    for name, text in modules().items():
        Path(name).write_text(text)
    monkeypatch.syspath_prepend(Path.cwd())
    yield
    for name in modules():
        sys.modules.pop(name.removesuffix(".py"), None)


@pytest.fixture(scope="module")
def _first_pipe(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, str, subprocess.CompletedProcess[str]]:
    """The README's first pipe, and what it printed; the folder has its `results.jsonl` and store."""
    folder, here, command = tmp_path_factory.mktemp("first"), Path.cwd(), commands(blocks("sh", README)[0])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RB_STORE", str(folder / "rb-store"))
        os.chdir(folder)
        done = in_a_shell(command)
        os.chdir(here)
    trained = records((folder / "results.jsonl").read_text("utf-8"))
    assert [record["train"]["method"] for record in trained] == ["erm", "trades"]
    return folder, command, done


@pytest.mark.slow
@pytest.mark.xdist_group("pages")
@pytest.mark.usefixtures("_files_of_a_user", "_own_modules", "_few_digits")
@pytest.mark.parametrize("page", SILENT)
def test_every_command_of_a_page_works_as_typed(
    page: str, _first_pipe: tuple[Path, str, subprocess.CompletedProcess[str]]
) -> None:
    """The store is a copy: these trainings see few digits."""
    shutil.copytree(_first_pipe[0], Path(), dirs_exist_ok=True)
    weights_of_own_code(Path("photos"))
    for command in (command for block, _ in OUTPUTS[page] for command in commands(block)):
        if "| jq " in command and shutil.which("jq") is None:
            continue
        check(command, done_as_typed(command).stdout)


# 0.3700 [0.2773, 0.4729], or a number without an interval; those in names (nb201-126, pgd20.32) are words.
NUMBER = re.compile(r"(?<![\w.-])(\d+\.\d+(?:e-?\d+)?)(?: \[(\d\.\d+), (\d\.\d+)\])?(?![\w.])")


def words_of(line: str) -> str:
    """A line without its numbers, the widths of its columns, folders of data sets and hashes of weights."""
    own = r"imagefolder:\S*/|(?<=─)─+|(?<=, )[0-9a-f]{8}(?=\))"
    return " ".join(re.sub(own, "", NUMBER.sub("#", line)).split())


def agree(shown: str, printed: str) -> bool:
    """Whether two lines have the same words, and each number is in the interval that is shown, or near."""
    if words_of(shown) != words_of(printed):
        return False
    for (value, low, high), (ours, *_) in zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=True):
        near = max(0.1, float(value) / 5)
        lowest, highest = (low, high) if low else (float(value) - near, float(value) + near)
        if not float(lowest) <= float(ours) <= float(highest):
            return False
    return True


@pytest.mark.slow
@pytest.mark.xdist_group("pages")
@pytest.mark.usefixtures("_files_of_a_user", "_own_modules")
@pytest.mark.parametrize("page", SHOWN)
def test_the_output_that_a_page_shows_is_what_its_commands_print(
    page: str,
    _first_pipe: tuple[Path, str, subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every line that is shown is printed, on all digits. A page that is no tutorial has `results.jsonl`. The
    README's photos have mixed sizes."""
    if page == "index.md":
        shutil.rmtree("photos")
        files_of_a_user(Path(), resize=32, crop=32)
    folder, first, of_first = _first_pipe
    monkeypatch.setenv("COLUMNS", "200")
    if not page.startswith("start-"):
        shutil.copy(folder / "results.jsonl", "results.jsonl")
        shutil.copytree(folder / "rb-store", "rb-store")  # without what other pages keep there
        monkeypatch.setenv("RB_STORE", str(Path("rb-store").resolve()))
    for block, shown in OUTPUTS[page]:
        if "| jq " in block and shutil.which("jq") is None:
            continue
        printed: list[str] = []
        for command in commands(block):
            done = of_first if command == first else done_as_typed(command)
            check(command, done.stdout)
            printed += [*done.stderr.splitlines(), *done.stdout.splitlines()]
        for line in shown.splitlines():
            assert any(agree(line, other) for other in printed), "\n".join(
                [block, line, "is not in", *printed]
            )


@pytest.mark.slow
@pytest.mark.usefixtures("_few_digits")
def test_each_call_in_place_of_one_of_another_library_works() -> None:
    (imports,) = blocks("python", TEXT_OF["coming-from.md"])
    network = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8))
    test = datasets.load("digits", "test")
    names: dict[str, Any] = {
        "model": network.eval(),
        "x": test.images[:4].float() / 255,
        "y": test.labels[:4],
    }
    exec(imports, names)
    small = "rb-arch --index 13714 --cells 1 --channels 4 | rb-train --epochs 1"
    Path("own.jsonl").write_text(in_this_process(small).stdout)
    rows = re.findall(r"^\| [^|]+ \|(?: `([^|]*)`)? \| `(rb-[^|]*)` \|$", TEXT_OF["coming-from.md"], re.M)
    assert len(rows) >= 15
    for call, command in rows:
        eval(call or "None", names)
        check(command, in_this_process(command.replace("own.jsonl", "--n 4 own.jsonl")).stdout)


def test_the_table_has_every_tool() -> None:
    text = TEXT_OF["tools.md"]
    assert {f"rb-{name}" for name in tools.TOOLS} == set(re.findall(r"^\| `(rb-[a-z]+)` \|", text, re.M))


def test_the_readme_and_the_pages_are_short_and_links_lead_to_every_page() -> None:
    assert len(README.encode()) <= 5_632
    assert len(PAGES) <= 46 and sum(len(TEXT_OF[page].split()) for page in PAGES[1:]) <= 19_650
    found = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert found == set(PAGES) and len(PAGES) == len(found)
    assert all(re.search(rf"\]\((?:docs/)?{page}", TEXT) for page in PAGES[1:])


@pytest.mark.extra
@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_needs_no_network() -> None:
    command = ["python", "-m", "mkdocs", "build", "--strict", "--site-dir", str(Path("site").absolute())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = {path.name: path.read_text("utf-8") for path in Path("site").glob("*.html")}
    assert {page.replace(".md", ".html") for page in PAGES} <= set(pages)
    for text in pages.values():
        assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?:https?:)?//", text)
    assert "rb-arch --unique | rb-train" in pages["index.html"]
    for name in tools.TOOLS:
        text = html.unescape(pages[f"rb-{name}.html"])
        flags = [one.split()[0].rstrip(",") for one in manual._records(tools.tool(name))]
        lacking = [flag for flag in flags if flag not in text]
        assert not lacking, f"rb-{name}.html lacks {', '.join(lacking)}"
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    for old, new in re.findall(r"^    ([a-z-]+): ([a-z-]+\.html\S*)$", config, re.M):  # pages that moved
        page, _, place = new.partition("#")
        assert f"url={new}" in pages[f"{old}.html"] and (not place or f'id="{place}"' in pages[page]), new
    assert all(f'id="rbtools.{name}"' in pages["api.html"] for name in ("evaluate", "fit", "attack", "load"))
    assert (
        "<td><code>save_adv</code></td>" in pages["api.html"] and "<td>pgd20.8</td>" in pages["notebook.html"]
    )
    assert (
        "Amini2024MeanSparse" in pages["leaderboard.html"]
        and pages["figures.html"].count('class="kind"') == 12
    )
    assert rbtools.__version__ in pages["index.html"].partition("<footer")[2]


def examples() -> list[str]:
    pages = [page for name in tools.TOOLS for page in tools.pages(tools.tool(name))]
    found = [command for page in pages for command in manual._parts(page.command, page.words)[3]]
    return list(dict.fromkeys(found))


def worked_pipelines() -> list[str]:
    """The commands of the man pages that are not generated from help texts, in their order."""
    written = prose.pages({})
    return [
        command for page in sorted(written, key=lambda page: -page.section) for command in page.commands()
    ]


def typed_on(page: str) -> list[str]:
    """The commands in the blocks and in the text of a page of docs/, or of all helps and the man pages.

    In the text, a placeholder (NAME), an option at the end or one word alone makes it the name of a command.
    """
    if page == "help":
        return examples() + worked_pipelines()
    text = re.sub(r"^```.*?^```$", "", TEXT_OF[page], flags=re.M | re.S)
    names = re.compile(r" [A-Z]+\b| -\S+$|^\S+ \S+$")
    named = [one for one in re.findall(r"`(rb-\w+ [^`]+)`", text) if not names.search(one)]
    return named + [command for block, _ in OUTPUTS[page] for command in commands(block)]


@pytest.mark.usefixtures("_own_modules")
@pytest.mark.parametrize("page", [*PAGES, "help"])
def test_every_command_that_is_shown_can_be_parsed(page: str) -> None:
    for command in typed_on(page):
        words = shlex.shlex(command, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for stage in re.split(r"\0[|&;<>()]+(?:\0|$)", "\0".join(words)):
            tool, *rest = stage.split("\0")
            if tool.startswith("rb-"):
                assert parsed(tool.removeprefix("rb-"), *rest), command


# What in_this_process does not do: other programs, and workers, which are started by a process of their own.
SHELL = re.compile(r"^head|\| python3|--jobs")


def done_as_typed(command: str) -> subprocess.CompletedProcess[str]:
    """A command that ended well, and its output; those that need a shell are run in one."""
    return in_a_shell(command) if SHELL.search(command) else in_this_process(command)


def in_this_process(command: str) -> subprocess.CompletedProcess[str]:
    """Run a pipe stage by stage without a shell: torch, which takes seconds to load, is loaded once."""
    text = said = ""
    line, _, into = command.partition(" > ")
    for stage in re.split(r" \|\s+(?=rb-|wc)", line if " " not in into else command):
        tool, *arguments = shlex.split(stage, comments=True)
        if tool == "wc":
            text = f"{len(text.splitlines())}\n"
            continue
        main = tools.tool(tool.removeprefix("rb-")).command
        done = CliRunner().invoke(main, arguments, input=text, prog_name=tool)
        assert done.exit_code == 0, f"$ {command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        refuse_complaints(command, done.stderr)
        text = done.stdout
        said += done.stderr
    if into and " " not in into:
        Path(into).write_text(text)
        text = ""
    return subprocess.CompletedProcess(command, 0, text, said)


@pytest.fixture
def _published_results() -> None:
    """`leaderboard.jsonl` and `others.jsonl`: five methods on two networks, with the metrics of PRBench."""
    lines: dict[str, list[str]] = {"resnet18": [], "vgg19": []}
    for place, method in enumerate(("erm", "pgd", "trades", "mart", "clp")):
        for shift, (network, some) in enumerate(lines.items()):
            part = (place * 3 % 5 + shift) / 8
            metrics = {"acc": 0.95 - part / 4, "pgd20.8": part, "pr.uniform.0.08": 0.8 + part / 8}
            metrics |= {"probacc.uniform.0.03.0.05": 0.9 + part / 16, "ge.pgd20.8": part / 3}
            metrics |= {"ge.pr-all.uniform.0.08": part / 9, "seconds_per_epoch": 3 + place}
            record = {"arch": {"name": network}, "dataset": "cifar10", "train": {"method": method}}
            some.append(json.dumps({**record, "metrics": metrics}) + "\n")
    Path("leaderboard.jsonl").write_text("".join([*lines["resnet18"], *lines["vgg19"]]))
    Path("others.jsonl").write_text("".join(lines["vgg19"]))


@pytest.mark.slow
@pytest.mark.usefixtures("_files_of_a_user", "_few_digits", "_published_results")
def test_every_example_of_a_help_text_works_as_typed() -> None:
    Path("models.jsonl").write_text(in_this_process("rb-arch --index 13714 --cells 1 --channels 4").stdout)
    Path("trained.jsonl").write_text(in_this_process("rb-train --epochs 20 models.jsonl").stdout)
    for seed, name in enumerate(("first", "second"), 1):
        other = in_this_process(f"rb-train --epochs 1 --seed {seed} models.jsonl").stdout
        Path(f"{name}.jsonl").write_text(other)
    attacked = "rb-attack pgd --eps 8 --n 100 trained.jsonl | rb-attack fgsm --eps 8 --n 100 | rb-ge acc"
    Path("results.jsonl").write_text(in_this_process(attacked).stdout)
    in_this_process("rb-attack patch --n 20 --save-adv adv trained.jsonl")
    typed = examples()
    assert len(typed) >= 16
    for command in typed:
        shown = in_this_process(command).stdout
        if not command.startswith("rb-store"):
            check(command, shown)


@pytest.mark.slow
@pytest.mark.usefixtures("_files_of_a_user", "_few_digits")
def test_every_worked_pipeline_of_the_manual_works_as_typed() -> None:
    typed = worked_pipelines()
    assert len(typed) >= 10
    for command in typed:
        text = in_this_process(command).stdout
        if "rb-store" not in command:
            check(command, text)


@pytest.mark.slow
@pytest.mark.usefixtures("_few_digits")
def test_the_cells_of_the_notebook_run_in_their_order() -> None:
    cells = json.loads((ROOT / "docs" / "notebook.ipynb").read_text("utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
    metrics = names["records"][0]["metrics"]
    assert names["result"].n == 100 and {"acc", "pgd20.8", "pgd20.32"} <= metrics.keys()


@pytest.mark.slow
def test_the_plots_of_the_pandas_page_are_drawn() -> None:
    some = []
    for method in ("erm", "trades"):
        evals = [
            {"metric": f"pgd20.{eps}", "eps": eps / 255, "value": 0.5, "ci95": [0.4, 0.6]} for eps in (16, 32)
        ]
        metrics = {"acc": 0.9, "pgd20.16": 0.5, "pgd20.32": 0.5}
        record = {"schema": 1, "arch": {"name": "a"}, "train": {"method": method}}
        some.append({**record, "evals": evals, "metrics": metrics})
    Path("results.jsonl").write_text("".join(json.dumps(record) + "\n" for record in some))
    exec(modules()["three_plots.py"], {})
    for name in ("bars", "scatter", "curve"):
        with Image.open(f"{name}.png") as drawn:
            assert drawn.width > 100


@pytest.mark.slow
@pytest.mark.usefixtures("_files_of_a_user", "_few_digits")
def test_the_python_of_the_pages_runs_as_typed() -> None:
    first, second, *library = blocks("python", TEXT_OF["python.md"])
    (evaluated,), (imports,) = (blocks("python", TEXT_OF[page]) for page in ("index.md", "coming-from.md"))
    assert {*blocks("python")} == {first, second, *library, evaluated, imports, *modules().values()}
    found: dict[str, Any] = {}
    exec(first, found)
    assert 0 <= found["record"]["metrics"]["pgd20.8"] <= found["record"]["metrics"]["acc"] <= 1
    exec(evaluated, {**found, "images": torch.rand(2, 1, 8, 8), "labels": torch.tensor([0, 1])})
    model = build({"space": "zoo", "name": "simplecnn"}, classes=10, shape=(1, 8, 8)).eval()
    names: dict[str, Any] = {"rbtools": rbtools, "model": model}
    exec(second, names)
    Path("trained.jsonl").write_bytes(rbtools.records.dumps(names["mine"]) + b"\n")
    for block in library:
        exec(block, names)
    assert (names["adversarial"] - names["x"]).abs().max() <= 8 / 255 + 1e-6

"""Man pages and completions: those in the repository are the generator's, and they work."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest

from rbtools.attacks import ATTACKS
from rbtools.cli import docs, tools
from rbtools.cli.click_commands import OptionChooser
from rbtools.cli.docs import completion, manual
from rbtools.training import METHODS
from tests.runner import one, run

ROOT = Path(__file__).resolve().parents[2]
GENERATED = docs.files()
PAGES = [page for name in tools.TOOLS for page in tools.pages(tools.tool(name))]
MAN_PAGES = [path for path in GENERATED if path.startswith("man/")]
TOOL_PAGES = [path for path in MAN_PAGES if path.endswith(".1")]


def options(page: tools.Page) -> list[click.Option]:
    return [param for param in page.command.get_params(page.context) if isinstance(param, click.Option)]


def test_the_files_are_what_the_commands_say_and_none_is_left_of_a_tool_that_is_gone() -> None:
    found = {
        f"{folder}/{path.name}": path
        for folder in ("man", "completions")
        for path in (ROOT / folder).iterdir()
    }
    assert set(found) == set(GENERATED)
    stale = [name for name, path in found.items() if path.read_text("utf-8") != GENERATED[name]]
    assert not stale, "run `make docs` and commit it"


def test_files_are_written_below_a_folder_of_choice() -> None:
    docs.main("elsewhere")
    written = {str(path.relative_to("elsewhere")) for path in Path("elsewhere").rglob("*.*")}
    assert written | {"completions/_rbtools"} == set(GENERATED)


@pytest.mark.parametrize("tool", tools.TOOLS)
def test_help_is_of_finished_sentences_without_python(tool: str) -> None:
    texts: dict[str, str] = {}
    for page in tools.pages(tools.tool(tool)):
        texts[page.words] = page.command.help or ""
        texts |= {
            f"{page.words} {option.opts[0]}": option.help or ""
            for option in options(page)
            if not option.hidden
        }
        if "--" not in page.words:
            assert not page.command.get_short_help_str(1000).endswith(("...", " al", " al.")), page.words
    for name, text in texts.items():
        sentence = re.sub(r"\s*\[default: .*\]$", "", text.strip(), flags=re.S)
        assert sentence, f"{name} has no help"
        if " --" in name or "\b" not in text:
            assert sentence.endswith((".", ":")), f"the help of {name} ends in '{sentence[-20:]}'"
        assert not re.search(r"`|\bNone\b|\bTrue\b|\bFalse\b|\w=\"", text), f"{name}: {text}"


def rendered(path: str) -> str:
    """A man page as a reader sees it on a wide terminal, unformatted."""
    command = f"MANWIDTH=400 MANROFFOPT=-c man --warnings=all -l {ROOT / path} | col -bx"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stderr == ""
    return re.sub(r"[ \n]+", " ", re.sub(r"‐\n *", "", done.stdout))


@pytest.mark.skipif(
    not (shutil.which("man") and shutil.which("groff") and shutil.which("col")),
    reason="needs man, groff, col",
)
@pytest.mark.parametrize("path", TOOL_PAGES)
def test_man_takes_the_page_without_a_warning_and_shows_every_option(path: str) -> None:
    shown = rendered(path)
    tool = Path(path).stem
    # What is below `rb-ge attack` has the options of rb-attack, which that page describes.
    elsewhere = [f"man/{one}.1" for one in re.findall(r"its options: ([\w-]+)\(1\)", shown)]
    elsewhere += [f"man/{one}.7" for one in re.findall(r"([\w-]+)\(7\) describes each", shown)]
    described = shown + "".join(GENERATED[path] for path in elsewhere)
    for page in PAGES:
        if page.words.split()[0] == tool and not isinstance(page.command, OptionChooser):
            for option in options(page):
                if record := option.get_help_record(page.context):
                    assert record[0].split()[0].rstrip(",") in described.replace("\\-", "-"), record
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "EXIT STATUS", "SEE ALSO"):
        assert f" {heading} " in shown


@pytest.mark.skipif(not (shutil.which("man") and shutil.which("col")), reason="needs man, col")
@pytest.mark.parametrize("path", [path for path in MAN_PAGES if path not in TOOL_PAGES])
def test_man_takes_the_pages_of_files_and_of_all(path: str) -> None:
    shown = rendered(path)
    for heading in ("NAME", "DESCRIPTION", "SEE ALSO"):
        assert f" {heading} " in shown
    named = [name for name in tools.TOOLS if f"rb-{name}(1)" in shown]
    assert named == (["train"] if "-methods" in path else list(tools.TOOLS)) and "{tools}" not in shown


@pytest.mark.skipif(not shutil.which("mandoc"), reason="needs mandoc")
def test_mandoc_has_nothing_to_warn_of() -> None:
    pages = [str(ROOT / path) for path in MAN_PAGES]
    done = subprocess.run(
        ["mandoc", "-Tlint", "-W", "warning", *pages], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_pages_about_records_and_entries_know_every_field_of_one(trained: dict[str, Any]) -> None:
    pages = [(ROOT / f"man/rb-{name}.5").read_text("utf-8") for name in ("record", "entry")]
    text = "".join(pages).replace("\\-", "-")
    record = one(run("attack", "fgsm --n 20", [trained["pgd"]]))
    fields = {*record, *record["arch"], *record["train"], *(key for one in record["evals"] for key in one)}
    known = set(re.findall(r"[a-z_0-9]+", text))
    assert fields - known - {"mine"} == set()


def test_no_line_of_text_is_taken_for_a_request() -> None:
    known = re.compile(r"\.(TH|SH|SS|PP|TP|br|nf|fi|RS|RE)( |$)")
    for line in (line for path in MAN_PAGES for line in GENERATED[path].splitlines()):
        assert known.match(line) or line[:1] not in (".", "'"), line
        assert line.isascii()


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
def test_marks_that_roff_knows_come_out_as_they_went_in() -> None:
    odd = [".start", "'start", "a\\b", "x - y", "--eps", "`q` 'r' ^ ~", "λ · ε ≤ 1"]
    source = "".join(f".PP\n{manual._escape(text)}\n" for text in odd)
    done = subprocess.run(
        ["groff", "-Tutf8", "-man", "-Kutf8", "-ww"],
        input=".TH X 1\n.SH A\n" + source,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stderr == ""
    plain = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)
    assert [line.strip() for line in plain.splitlines() if line.strip()][2:-1] == odd


CASES = {
    ("rb-attack", ""): [*ATTACKS, "none", "preset", "check", "curve", "transfer"],
    ("rb-attack", "pg"): ["pgd"],
    ("/usr/bin/rb-attack", "pg"): ["pgd"],
    ("rb-attack", "pgd", "--norm", ""): ["linf", "l2"],
    ("rb-attack", "pgd", "--norm", "l2", "--start", "u"): ["uniform"],
    ("rb-attack", "pgd", "--norm", "=", "li"): ["linf"],
    ("rb-attack", "pgd", "--norm", "="): ["linf", "l2"],
    ("rb-attack", "pgd", "--iter"): ["--iterate"],
    ("rb-attack", "fgsm", "--iter"): [],
    ("rb-attack", "pgd", "--eps", ""): [],
    ("rb-attack", "pgd", "--checkpoint", "mod"): ["model.pt"],
    ("rb-attack", "pgd", "res"): ["results.jsonl"],
    ("rb-attack", "pgd", "--store", ""): ["photos"],
    ("rb-attack", "pgd", "--dataset", "imagef"): ["imagefolder:"],
    ("rb-attack", "pgd", "--dataset", "imagefolder", ":", "ph"): ["photos"],
    ("rb-attack", "pgd", "--dataset", "imagefolder", ":"): ["photos"],
    ("rb-attack", "pgd", "--dataset", "cinic"): ["cinic10"],
    ("rb-attack", "pgd", "--dataset", "np"): ["npz:"],
    ("rb-attack", "pgd", "--dataset", "npz", ":", "mo"): ["model.pt"],
    ("rb-ge", "att"): ["attack"],
    ("rb-ge", "attack", "pgd", "--iterate", ""): ["any", "last"],
    ("rb-corrupt", "contrast,br"): ["contrast,brightness"],
    ("rb-corrupt", "contrast,brightness", "--sev"): ["--severity"],
    ("rb-train", "--method", ""): [*METHODS],
    ("rb-train", "--method", "erm,tr"): ["erm,trades"],
    ("rb-train", "--method", "trades", "--lam"): ["--lambda"],
    ("rb-rank", "--format", "l"): ["latex"],
    ("rb-rank", "--by", "corrupt.fog"): ["corrupt.fog.mean"],
    ("rb-score", "--metric", "acc,fgs"): ["acc,fgsm.8"],
    ("rb-score", "--missing", "w"): ["worst"],
    ("rb-arch", "--space", "nas"): ["nasbench201"],
    ("rb-arch", "--uni"): ["--unique"],
}


@pytest.fixture
def _files_of_a_user() -> None:
    Path("photos/test").mkdir(parents=True)
    for name in ("results.jsonl", "model.pt"):
        Path(name).touch()


def has_bash() -> bool:
    check = ["bash", "-c", "(( BASH_VERSINFO[0] * 10 + BASH_VERSINFO[1] >= 43 ))"]
    return bool(shutil.which("bash")) and subprocess.run(check).returncode == 0


@pytest.mark.skipif(not has_bash(), reason="needs bash 4.3 or newer")
@pytest.mark.usefixtures("_files_of_a_user")
def test_bash_completes() -> None:
    calls = "\n".join(
        f"COMP_WORDS=({' '.join(map(repr, words))}) COMP_CWORD={len(words) - 1}; _rbtools;"
        ' echo "${COMPREPLY[*]}"'
        for words in CASES
    )
    script = f"source '{ROOT / 'completions/rbtools.bash'}'\n{calls}"
    done = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    found = [line.split() for line in done.stdout.splitlines()]
    assert dict(zip(CASES, found, strict=True)) == CASES


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh_takes_the_file_and_knows_every_place() -> None:
    path = ROOT / "completions/_rbtools"
    done = subprocess.run(["zsh", "-n", str(path)], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    tables = path.read_text("utf-8").partition("\n_rbtools() {")[0]
    script = tables + '\n_rbtools_value "rb-attack pgd --norm" && print -r -- $choices'
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr) == ("linf l2\n", "")


def test_completions_start_no_python() -> None:
    for path, text in GENERATED.items():
        if path.startswith("completions/"):
            # As a word of help it names a kind of architecture: python:MODULE:FUNCTION.
            assert "python" not in text.replace("python:", "") and "_COMPLETE" not in text


def test_an_option_that_differs_between_places_is_described_by_its_place() -> None:
    def page(words: str, *params: click.Parameter) -> tools.Page:
        command = click.Command(words, params=list(params))
        return tools.Page(words, command, click.Context(command))

    flag = page("rb-x a", click.Option(["--kind"], is_flag=True), click.Option(["--n"], type=int))
    value = page(
        "rb-x b", click.Option(["--kind"], type=click.Choice(["p", "q"])), click.Option(["--n"], type=int)
    )
    assert list(completion._values([flag, value])) == ["rb-x b --kind", "--n"]

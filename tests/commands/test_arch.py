"""rb-arch: the listed architectures, their order, the images of their counts; and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from rbtools.models import build
from rbtools.spaces import nasbench201
from tests import runner
from tests.runner import records

BEST = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"


def run(words: str) -> Result:
    return runner.run("arch", words)


def archs(words: str = "") -> list[dict[str, Any]]:
    result = run(words)
    assert (result.exit_code, result.stderr) == (0, "")
    return [record["arch"] for record in records(result)]


def indices(words: str) -> list[int]:
    return [arch["index"] for arch in archs(words)]


def test_one_record_as_it_is_written() -> None:
    assert run("--index 13714").stdout == (
        '{"schema":1,"arch":{"space":"nasbench201","name":"nb201-13714","index":13714,'
        f'"str":"{BEST}","class":13714,"params":1073466,"macs":153272960,"kernel_params":37,'
        '"live_kernel_params":37,"none":0,"channels":16,"cells":5}}\n'
    )


def test_all_come_in_the_published_order() -> None:
    found = archs()
    assert [arch["index"] for arch in found] == list(range(15625))
    assert tuple(arch["str"] for arch in found) == nasbench201.strings()


def test_unique_gives_the_least_index_of_each_class() -> None:
    every, unique = archs(), archs("--unique")
    assert len(unique) == 6466
    assert [arch["index"] for arch in unique] == sorted({arch["class"] for arch in every})
    assert all(arch["class"] == arch["index"] for arch in unique)


def test_an_index_list_comes_as_it_is_written() -> None:
    assert indices("--index 9,3-5,9") == [9, 3, 4, 5, 9]
    duplicates = [arch["index"] for arch in archs("--index 0-99") if arch["class"] != arch["index"]]
    assert duplicates, "the first hundred hold one that equals an earlier one"
    assert indices("--index 0-99 --unique") == [n for n in range(100) if n not in duplicates]


def test_a_string_finds_its_index() -> None:
    assert indices(f"--str '{BEST}'") == [13714]


@pytest.mark.parametrize("word", ["13714", "nb201-13714", BEST])
def test_neighbours_differ_in_one_edge(word: str) -> None:
    found = archs(f"--neighbours '{word}'")
    ops = nasbench201.parse(BEST)
    apart = [sum(a != b for a, b in zip(nasbench201.parse(arch["str"]), ops, strict=True)) for arch in found]
    assert apart == [1] * 24
    assert len({arch["str"] for arch in found}) == 24


@pytest.mark.slow
def test_the_zoo() -> None:
    names = [arch["name"] for arch in archs("--space zoo")]
    (found,) = archs("--space zoo --str resnet18")
    assert archs(f"--space zoo --index {names.index('resnet18')}") == [found]
    assert found["params"] == 11173962  # of the published CIFAR-10 network


def test_the_theorys_spaces_have_the_width_and_depth_asked_for() -> None:
    assert len(archs("--space fcnn")) == 500
    found = archs("--space fcnn --depth 3 --width 9 --where 'skips == 1 and tanh == 2'")
    assert [(arch["str"], arch["width"]) for arch in found] == [("tanh/tanh+skip", 9)]
    (named,) = archs("--arch rescnn:relu3/tanh5+skip --width 9")
    (found_,) = archs("--space rescnn --depth 3 --width 9 --str relu3/tanh5+skip")
    assert named == found_


@pytest.mark.slow
def test_a_sample_of_a_space_too_large_to_list() -> None:
    deep = "--space rescnn --depth 30 --where 'skips > 14'"
    large = [arch["str"] for arch in archs(f"{deep} --sample 8")]
    assert len(set(large)) == 8
    small = [arch["str"] for arch in archs(f"{deep} --sample 3")]
    assert small == [text for text in large if text in small]
    result = run("--space fcnn --depth 30 --where 'skips > 99' --sample 1")
    assert "warning: --sample 1 found 0 among" in result.stderr


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("kernel_params == 18 and none == 0", lambda a: a["kernel_params"] == 18 and a["none"] == 0),
        ("arch.none == 0 and not params > 2e5", lambda a: a["none"] == 0 and a["params"] <= 2e5),
        ("class != index and space == 'nasbench201'", lambda a: a["class"] != a["index"]),
    ],
)
def test_where_chooses_what_it_says(where: str, holds: Any) -> None:
    expected = [arch["index"] for arch in archs() if holds(arch)]
    assert 0 < len(expected) < 15625
    assert indices(f'--where "{where}"') == expected


def test_where_comes_before_sample() -> None:
    found = archs("--where 'kernel_params == 18 and none == 0' --sample 5")
    assert len(found) == 5
    assert {(arch["kernel_params"], arch["none"]) for arch in found} == {(18, 0)}


@pytest.mark.parametrize("more", ["", "--sample 3"])
def test_where_that_nothing_meets(more: str) -> None:
    result = run(f"--where 'none == 7' {more}")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "rb-arch: no architecture matches.\n"


def test_a_sample_is_the_same_on_every_machine() -> None:
    assert indices("--sample 4") == [126, 13507, 13585, 14529]
    assert indices("--sample 4 --seed 1") == [6708, 7388, 7874, 11406]


def test_a_sample_is_ordered_and_part_of_a_larger_one() -> None:
    large = indices("--unique --sample 64 --seed 5")
    assert len(set(large)) == 64 and large == sorted(large)
    small = indices("--unique --sample 16 --seed 5")
    assert small == [index for index in large if index in small] and len(small) == 16
    assert small != indices("--unique --sample 16 --seed 6")


def test_a_sample_does_not_depend_on_its_skeleton_or_data() -> None:
    assert indices("--sample 9") == indices("--sample 9 --cells 1 --dataset digits")


def test_a_sample_of_more_than_there_are_is_all_with_a_warning() -> None:
    result = run("--index 3,1 --sample 5")
    assert result.exit_code == 0 and result.stdout.count("\n") == 2
    assert result.stderr == (
        "rb-arch: warning: --sample 5 asks for more than there are (2); all are written.\n"
    )


def test_the_skeleton_has_the_width_and_depth_asked_for() -> None:
    (one,) = archs("--index 13714 --cells 1 --channels 8")
    assert (one["cells"], one["channels"]) == (1, 8)
    assert one["params"] == nasbench201.arch(13714, cells=1, channels=8)["params"]
    counts = [archs(f"--index 13714 --cells {cells}")[0]["params"] for cells in (1, 2, 3)]
    assert counts[1] - counts[0] == counts[2] - counts[1] > 0


def test_digits_are_one_channel_of_8x8() -> None:
    record = json.loads(run("--index 13714 --dataset digits").stdout)
    assert record["dataset"] == "digits"
    # Two input channels fewer in the stem's 3x3 convolution to 16 channels.
    assert record["arch"]["params"] == 1073466 - 2 * 9 * 16
    # A sixteenth of the area everywhere; stem and classifier counted by themselves.
    inner = 153272960 - 3 * 9 * 16 * 32 * 32 - 64 * 10
    assert record["arch"]["macs"] == inner // 16 + 9 * 16 * 8 * 8 + 64 * 10


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--index 15625", "no architecture with the index 15625. Indices go from 0 to 15624."),
        ("--index 1.5", "--index has 1.5. Expected whole numbers, such as 13714 or 0-9,50."),
        ("--index 7-5", "--index has the range '7-5', which is in reverse order. Write '5-7'."),
        ("--str |nor_conv_3x3~0|+|nor_con~0", "does not parse at character 19: found 'nor_con'"),
        ("--where kernel_params", "--where: Expression 'kernel_params' is a number, not a condition."),
        ("--where 'kernl_params == 1'", "field 'kernl_params'. Did you mean 'kernel_params'"),
        ("--neighbours nb201-99999", "no architecture with the index 99999"),
        ("--neighbours 1 --index 1", "More than one of --arch, --index, --str"),
        ("--space zoo --neighbours 0", "has no neighbours: the space zoo is a plain list."),
        ("--space zoo --cells 1", "have no cells, which those of nasbench201 have: leave it out"),
        ("--space zoo --str resnet19", "Unknown model 'resnet19'. Did you mean 'resnet18'"),
        ("--space zoo --depth 3", "zoo have no depth, which those of fcnn and rescnn have"),
        ("--arch resnet18 --width 9", "have no width, which those of fcnn and rescnn have"),
        ("--space fcnn --cells 1", "fcnn have no cells, which those of nasbench201"),
        ("--space nasbench", "'nasbench' is not one of 'nasbench201'"),
        ("--sample 0", "0 is less than 1"),
        ("--channels 0", "0 is less than 1"),
        ("--seed -1", "-1 is less than 0"),
        ("--dataset digit", "Unknown data set 'digit'. Did you mean 'digits'?"),
        ("--dataset imagefolder:nowhere", "The image folder nowhere does not exist."),
        ("results.jsonl", "so results.jsonl means nothing. Did you mean --from-checkpoint?"),
    ],
)
def test_wrong_use_is_one_line(words: str, message: str) -> None:
    result = run(words)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("rb-arch: error: ") and message in result.stderr


SPACE = """
from torch import nn

def tiny(classes, channels, shape, width=8, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * shape[1] * shape[2], width, bias=bias),
                         nn.Linear(width, classes))

def broken(classes):
    return nn.Linear(3, classes)
"""


def test_a_space_of_one_s_own_has_parameters_and_is_counted() -> None:
    Path("own_space.py").write_text(SPACE)
    words = "--dataset digits --allow-code --arch"
    two = "python:own_space:tiny:width=2:bias=false,python:own_space:tiny:width=4"
    first, second = records(run(f"{words} {two}"))
    assert first["arch"]["options"] == {"width": 2, "bias": False} and "code" in first["arch"]
    assert first["arch"]["params"] == 64 * 2 + 2 * 10 + 10 and first["arch"]["macs"] == 64 * 2 + 2 * 10
    assert second["arch"]["params"] == 64 * 4 + 4 + 4 * 10 + 10
    network = build(first, classes=10, shape=(1, 8, 8), allow_code=True)
    assert network[1].weight.shape == (2, 64) and network[1].bias is None
    assert "params" not in archs("--arch python:own_space:tiny:width=2")[0]
    refused = {
        "python:own_space:tiny:widht=2": "the function has no parameter widht. Did you mean 'width'?",
        "python:own_space:tiny:width": "has the part 'width'. Expected python:MODULE:FUNCTION",
        "python:own_space:tiny:width=1:width=2": "each once",
        "python:own_space:broken": "The network raises RuntimeError",
    }
    for text, message in refused.items():
        result = run(f"{words} {text}")
        assert (result.exit_code, result.stdout) == (2, "") and message in result.stderr

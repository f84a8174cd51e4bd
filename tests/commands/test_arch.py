"""rb-arch: the listed architectures, their order, the images of their counts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rbtools.models import build
from tests import runner
from tests.runner import records

BEST = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|skip_connect~0|nor_conv_1x1~1|nor_conv_3x3~2|"

run = partial(runner.run, "arch")


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


def test_where_comes_before_sample() -> None:
    found = archs("--where 'kernel_params == 18 and none == 0' --sample 5")
    assert len(found) == 5
    assert {(arch["kernel_params"], arch["none"]) for arch in found} == {(18, 0)}


def test_a_sample_is_the_same_on_every_machine() -> None:
    for words in ("", "--cells 1 --dataset digits"):
        assert indices(f"--sample 4 {words}") == [126, 13507, 13585, 14529]
    assert indices("--sample 4 --seed 1") == [6708, 7388, 7874, 11406]


def test_a_sample_is_ordered_and_part_of_a_larger_one() -> None:
    large = indices("--unique --sample 64 --seed 5")
    assert len(set(large)) == 64 and large == sorted(large)
    small = indices("--unique --sample 16 --seed 5")
    assert small == [index for index in large if index in small] and len(small) == 16
    assert small != indices("--unique --sample 16 --seed 6")


def test_digits_are_one_channel_of_8x8() -> None:
    record = json.loads(run("--index 13714 --dataset digits").stdout)
    assert record["dataset"] == "digits"
    # Two input channels fewer in the stem's 3x3 convolution to 16 channels.
    assert record["arch"]["params"] == 1073466 - 2 * 9 * 16
    # A sixteenth of the area everywhere; stem and classifier counted by themselves.
    inner = 153272960 - 3 * 9 * 16 * 32 * 32 - 64 * 10
    assert record["arch"]["macs"] == inner // 16 + 9 * 16 * 8 * 8 + 64 * 10


SPACE = """
from torch import nn

def tiny(classes, channels, shape, width=8, bias=True):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * shape[1] * shape[2], width, bias=bias),
                         nn.Linear(width, classes))

class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.memory = nn.ConvTranspose2d(1, 8, 2, stride=2), nn.LSTM(8, 8, batch_first=True)
        self.attention, self.last = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 10)

    def forward(self, images):
        tokens = self.memory(self.up(images).flatten(2).transpose(1, 2))[0]
        tokens = nn.functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.last(self.attention(tokens).mean(1))

def attending(classes):
    return Attending()

def broken(classes):
    return nn.Linear(3, classes)
"""


def test_attention_recurrent_layers_and_transposed_convolutions_are_counted_alike_everywhere() -> None:
    """By hand, for 256 tokens of 8 numbers."""
    Path("own_space.py").write_text(SPACE)
    (record,) = records(run("--dataset digits --allow-code --arch python:own_space:attending"))
    attention = 2 * 256 * 256 * 8
    in_all = 64 * 32 + 256 * 2 * 4 * 64 + attention + (attention + 256 * (4 * 64 + 2 * 128)) + 80
    (measured,) = records(runner.run("measure", "macs --allow-code", [record]))
    assert record["arch"]["macs"] == measured["metrics"]["macs"] == in_all


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

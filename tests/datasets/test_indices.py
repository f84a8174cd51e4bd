"""--n FILE: the forms that people and NAS-Bench-201 write, and an answer to everything else."""

from __future__ import annotations

import hashlib
import json
import re

import pytest

from rbtools.datasets import indices
from rbtools.errors import RbError

PUBLISHED = json.dumps({"train": ["int", ["0", "3", "1"]], "valid": ["int", ["2", "4"]]})


@pytest.fixture
def write(tmp_path):
    def written(text):
        (tmp_path / "chosen.txt").write_text(text, "utf-8")
        return str(tmp_path / "chosen.txt")

    return written


@pytest.mark.parametrize(
    "text", ["3 1 0", "0\n1\n3\n", "3,1,0", " 3 ,\t1\r\n0", "[3, 1, 0]", '["0", "1", "3"]', "\ufeff3 1 0"]
)
def test_forms_of_one_list(write, text):
    found = indices.read(write(text), 5)
    assert found.numbers == (0, 1, 3)
    assert found.name == "sha256:" + hashlib.sha256(b"0 1 3").hexdigest()


def test_one_list_of_several_is_named(write):
    path = write(PUBLISHED)
    assert indices.read(f"{path}:train", 5).numbers == (0, 1, 3)
    assert indices.read(f"{path}:valid", 5).numbers == (2, 4)
    assert indices.read(write('{"a": [1]}') + ":a", 5).numbers == (1,)


def test_a_colon_may_be_part_of_the_name(tmp_path):
    (tmp_path / "a:b").write_text("1 2")
    assert indices.read(str(tmp_path / "a:b"), 5).numbers == (1, 2)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("1 5", "", "names the example 5, and the split has 5. Expected numbers from 0 to 4."),
        ("-1 2", "", "names the example -1"),
        ("1 2 1", "", "names the example 1 twice"),
        ("1 two", "", "holds 'two'. Expected whole numbers"),
        ("[1, 2.5]", "", "holds 2.5"),
        ("[true]", "", "holds True"),
        ("", "", "is empty"),
        ("[]", "", "is empty"),
        ("[1, 2", "", "is not JSON"),
        (PUBLISHED, "", "has several lists: train, valid. Name one: "),
        (PUBLISHED, ":vaild", "has no 'vaild'. Did you mean 'valid'? It has: train, valid."),
        ("1 2", ":a", "is no JSON object, so it has no 'a'"),
        ("[1]", ":a", "is one list, so it has no 'a'"),
        ('{"a": 1}', ":a", "holds no list there"),
    ],
)
def test_anything_else_is_explained(write, text, key, message):
    path = write(text)
    with pytest.raises(RbError) as caught:
        indices.read(path + key, 5)
    assert message in str(caught.value) and path in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(RbError, match=r"indices .*none cannot be read \(No such file"):
        indices.read(str(tmp_path / "none"), 5)
    (tmp_path / "binary").write_bytes(b"\xff\x00\xff")
    with pytest.raises(RbError, match=r"indices .*binary cannot be read"):
        indices.read(str(tmp_path / "binary"), 5)


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3", (0, 1, 2, 3)), ("2", (2,)), ("3,0-1", (0, 1, 3)), ("4-4", (4,))]
)
def test_ranges_need_no_file(text, numbers):
    assert indices.read(text, 5).numbers == numbers


def test_a_file_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0-3").write_text("4")
    assert indices.read("0-3", 5).numbers == (4,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0-5", "--indices 0-5 names the example 5, and the split has 5. Expected numbers from 0 to 4."),
        ("0-2,1", "--indices 0-2,1 names the example 1 twice"),
        ("3-1", "has the range 3-1, which is empty. Write 1-3."),
        ("0-99999999999", "Expected numbers below 10000000"),
        (",".join(["0-9999998"] * 2), "names more than 10000000 examples"),
    ],
)
def test_wrong_ranges_are_explained(text, message):
    with pytest.raises(RbError, match=re.escape(message)):
        indices.read(text, 5)

"""Tables: columns as metrics and fields, records as tables; published numbers, exactly and both ways."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools.errors import RbError
from rbtools.formats import Broken, ConversionReport
from rbtools.formats.numbers import NoNumber, NotFinite, number, plain, printed
from tests.formats import reading


def units(text: str | bytes, **options: Any) -> list[Any]:
    return reading.units("csv", reading.put("table.csv", text), **options)


def read(text: str | bytes, told: ConversionReport | None = None, **options: Any) -> list[dict[str, Any]]:
    return reading.read("csv", reading.put("table.csv", text), told, **options)


def written(records: list[dict[str, Any]], **options: Any) -> str:
    return reading.texts("csv", records, **options)[""]


def test_columns_are_fields_and_metrics_by_their_names() -> None:
    text = (
        "arch.name,dataset,train.method,train.seed,acc,pgd20.8,Notes\nresnet18,cifar10,pgd,3,0.8,0.5,fine\n"
    )
    (record,) = read(text)
    assert record["arch"]["space"] == "zoo" and record["arch"]["params"] == 11_173_962
    assert (record["dataset"], record["train"]) == ("cifar10", {"method": "pgd", "seed": 3})
    assert record["metrics"] == {"acc": 0.8, "pgd20.8": 0.5} and record["csv"] == {"Notes": "fine"}
    entry = {"tool": "rb-convert", "metric": "acc", "source": "csv", "published": "0.8", "rounding": 0.1}
    assert record["evals"][0] == entry | {"value": 0.8}


def test_a_map_says_what_columns_mean() -> None:
    text = "Model,Clean (%),Robust,Eps,Comment\nMine,94.85,50 %,8/255,x\n"
    (record,) = read(
        text,
        map="Model=arch.name,Clean (%)=acc,Robust=aa.8,Comment=-",
        percent="Clean (%)",
        set="dataset=CIFAR-10",
    )
    assert record["arch"] == {"space": "csv", "name": "Mine"} and record["dataset"] == "cifar10"
    assert record["metrics"] == {"acc": 0.9485, "aa.8": 0.5, "Eps": 8 / 255} and "csv" not in record


def test_a_scale_is_that_of_all_accuracies() -> None:
    text = "arch.name,acc,pgd20.8,ge.pgd20.8,seconds_per_epoch,loss\nx,94.85,50,-2,30,1.5\n"
    (record,) = read(text, scale="percent")
    assert list(record["metrics"].values()) == [0.9485, 0.5, -0.02, 30.0, 1.5]
    again = written([record], scale="percent").splitlines()[1]
    assert again.endswith(",94.85,50,-2,30,1.5")


def test_tabs_semicolons_and_windows_files_are_read() -> None:
    assert read("arch.name\tacc\nx\t0.5\n", delimiter="tab")[0]["metrics"] == {"acc": 0.5}
    assert read(b"\xef\xbb\xbfarch.name;acc\r\n\r\nx;0.5\r\n", delimiter=";")[0]["metrics"] == {"acc": 0.5}


@pytest.mark.parametrize("cell", ["94,1", "94,1 %", "94,1 ± 0,2", "+94,1"])
def test_a_decimal_comma_is_read_with_its_option_and_named_without(cell: str) -> None:
    told, text = ConversionReport(), f"arch.name;acc;steps;Notes\nA;{cell};1.234,5;a, b\n"
    (record,) = read(text, delimiter=";", decimal=",", scale="percent")
    assert record["metrics"] == {"acc": 0.941, "steps": 1234.5} and record["csv"] == {"Notes": "a, b"}
    again = written([record], delimiter=";", decimal=",", scale="percent")
    assert "94,1;" in again and "1234,5" in again
    assert read(again, delimiter=";", decimal=",", scale="percent")[0]["metrics"] == record["metrics"]
    (record,) = read(text, told, delimiter=";", columns="acc=acc")
    assert record["metrics"] == {}
    assert any("--decimal ," in line for line in (*told.errors(), *told.remarks()))


def test_a_header_with_another_separator_names_it() -> None:
    for sign, words in ((";", "';'"), ("\t", "tab"), ("|", "'|'")):
        with pytest.raises(Broken, match=re.escape(f"give --delimiter {words}")):
            read(f"arch.name{sign}acc\nA{sign}0.5\n")


def test_records_are_no_table() -> None:
    with pytest.raises(Broken, match=r"contains records\. To write these as CSV, add --write FILE"):
        read('{"schema":1,"arch":{"space":"mine","name":"x"},"metrics":{"acc":0.5}}\n')


def test_columns_stay_as_they_are_beside_what_can_be_counted_anew() -> None:
    arch = {"space": "nasbench201", "name": "nb201-3", "index": 3, "channels": 8, "cells": 1, "macs": 574272}
    (back,) = read(written([{"schema": 1, "arch": arch | {"params": 53002}, "metrics": {"acc": 0.5}}]))
    assert (back["arch"]["params"], back["arch"]["macs"], back["arch"]["cells"]) == (53002, 574272, 1)
    (back,) = read("arch.index,params\n3,7\n")  # where no column says it, it is counted
    assert back["arch"]["class"] == 3 and back["metrics"] == {"params": 7}


def test_a_table_keeps_its_columns_and_their_order() -> None:
    text = written(read("arch.name,acc,pgd20.8,Notes\nx,0.50,0.5,fine\ny,0.25,,\n"))
    assert text == "arch.name,arch.space,acc,pgd20.8,Notes\nx,csv,0.50,0.5,fine\ny,csv,0.25,,\n"


def test_odd_names_and_values_of_all_types_come_back() -> None:
    arch = {"space": "mine", "name": "a,\"\n='é", "depth": [1, 2], "classes": -(10**18)}
    metrics = {"odd one": 0.1, "arch.x": 0.25, "dataset": 0.5, "metrics.y": 1.0}
    record = {"arch": arch, "metrics": metrics, "train": {"odd key": True, "seed": "3"}, "list": [0.5, "x"]}
    (again,) = read(written([record]))
    assert {key: again[key] for key in record} == record


def test_nan_and_infinity_leave_the_rest_of_the_row() -> None:
    told = ConversionReport()
    (record,) = read("arch.name,acc,aa.8,loss\nx,nan,0.5,-inf\n", told)
    assert record["metrics"] == {"aa.8": 0.5} and len(list(told.errors())) == 2
    assert record["evals"][0]["reason"] == "published as nan: a number is nan, which is not finite"


def test_percents_where_fractions_belong_are_noticed() -> None:
    told = ConversionReport()
    (record,) = read("arch.name,acc\nx,94.85\n", told)
    (line,) = told.errors()
    assert record["metrics"] == {} and "for percentages, give --scale percent" in line
    assert "table.csv: row 1: acc is 94.85" in line


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (b"y,1,2\n", "Expected 2 fields in line 3, saw 3"),
        (b"\xff,0.5\n", "is not UTF-8 .byte 21"),
    ],
)
def test_what_is_no_table_is_said(rows: bytes, message: str) -> None:
    with pytest.raises(Broken, match=message):
        units(b"arch.name,acc\nx,0.5\n" + rows)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("Model,acc\n", {}, r"describes the architecture\. Columns: Model, acc\..*'Model=arch"),
        ("a,a\n", {}, "has the column 'a' twice"),
        ("Model,acc\n", {"map": "Modle=arch.name"}, "names the column 'Modle'.* Did you mean 'Model'"),
        ("Model,acc\n", {"map": "acc=acc:percent"}, "Write --map 'acc=acc' --percent 'acc'."),
        ("Model,acc\n", {"set": "acc=1"}, "--set acc: this is not a field"),
    ],
)
def test_a_table_or_option_that_is_none_is_refused(text: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(RbError, match=message):
        read(text + "x,0.5\n", **options)


def test_a_column_without_a_name_is_left_out_and_said() -> None:
    told = ConversionReport()
    for record in read(",arch.name,acc,Unnamed: 0,,\n0,A,0.9,0,,\n1,B,0.8,1,,\n", told):
        assert list(record["metrics"]) == ["acc"] and "csv" not in record
    (said,) = told.remarks()
    assert "columns without a name are left out (column 1, 4, 5, 6)" in said
    assert read("Unnamed: 0,arch.name\n7,A\n", map="Unnamed: 0=loss")[0]["metrics"] == {"loss": 7}


@pytest.mark.parametrize(
    ("raw", "percent", "value", "decimals"),
    [
        ("85.34", True, 0.8534, 4),
        (Decimal("94.90"), True, 0.949, 4),
        (0.3, False, 0.3, 1),
        (58, True, 0.58, 2),
        (" 50 % ", False, 0.5, 2),
        ("8/255", False, 8 / 255, 8),
        ("93.0 ± 0.2", True, 0.93, 3),
        ("93.0% ± 0.2%", False, 0.93, 3),
        ("93.0 +/- .2 %", False, 0.93, 3),
        (r"$93.0 \pm 0.2$", True, 0.93, 3),
        ("\u22120.5", False, -0.5, 1),
        ("1e-3", False, 0.001, 3),
        (Decimal("0.00"), True, 0.0, 4),
    ],
)
def test_numbers_are_read_as_printed(raw: Any, percent: bool, value: float, decimals: int) -> None:
    found = number(raw, percent=percent)
    assert found is not None and (found.value, found.decimals) == (value, decimals)


@pytest.mark.parametrize("raw", [None, "", "  ", "null", "None", "-", "N/A"])
def test_nothing_is_no_number(raw: Any) -> None:
    assert number(raw) is None


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (NotFinite("NaN"), "a number is NaN, which JSON does not allow"),
        (True, "found true where a number was expected"),
        ("1/0", "found '1/0' where a number was expected"),
        ("1e999", "the number 1e999 is too large"),
    ],
)
def test_what_is_no_number_is_a_clause(raw: Any, message: str) -> None:
    with pytest.raises(NoNumber) as wrong:
        number(raw)
    assert str(wrong.value) == message


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300), st.booleans())
def test_a_printed_value_is_read_to_the_last_bit(value: float, percent: bool) -> None:
    text = printed(value, percent=percent)
    for raw in (text, str(text)):
        found = number(raw, percent=percent)
        assert found is not None and found.value == value


def test_values_carried_along_are_json() -> None:
    value = {"a": Decimal("0.50"), "b": [NotFinite("NaN"), 1], "c": Decimal("1e999"), "d": "x"}
    assert plain(value) == {"a": 0.5, "b": [None, 1], "c": None, "d": "x"}

"""Tables: columns as metrics and fields, mapped and unmapped, and records as tables."""

from __future__ import annotations

import gzip
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rbtools import api
from rbtools.errors import RbError
from rbtools.formats import Broken, ConversionReport
from tests.formats import reading


def units(text: str | bytes, **options: Any) -> list[Any]:
    return reading.units("csv", reading.put("table.csv", text), **options)


def read(text: str | bytes, told: ConversionReport | None = None, **options: Any) -> list[dict[str, Any]]:
    return reading.read("csv", reading.put("table.csv", text), told, **options)


def written(records: list[dict[str, Any]], **options: Any) -> str:
    text: str = reading.texts("csv", records, **options)[""]
    return text


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
        text, map="Model=arch.name,Clean (%)=acc:percent,Robust=aa.8,Comment=-", set="dataset=CIFAR-10"
    )
    assert record["arch"] == {"space": "csv", "name": "Mine"} and record["dataset"] == "cifar10"
    assert record["metrics"] == {"acc": 0.9485, "aa.8": 0.5, "Eps": 8 / 255} and "csv" not in record


def test_a_scale_is_that_of_all_accuracies() -> None:
    text = "arch.name,acc,pgd20.8,ge.pgd20.8,seconds_per_epoch,loss\nx,94.85,50,-2,30,1.5\n"
    (record,) = read(text, scale="percent")
    assert list(record["metrics"].values()) == [0.9485, 0.5, -0.02, 30.0, 1.5]
    again = written([record], scale="percent").splitlines()[1]
    assert again.endswith(",94.85,50,-2,30,1.5")


@pytest.mark.parametrize(
    ("header", "cell"),
    [
        ("arch.index", "1832"),
        ("arch.str", "|nor_conv_1x1~0|+|nor_conv_1x1~0|none~1|+|nor_conv_1x1~0|skip_connect~1|none~2|"),
        ("arch.name", "nb201-1832"),
    ],
)
def test_an_architecture_of_nas_bench_201_has_its_class(header: str, cell: str) -> None:
    (record,) = read(f"{header},acc\n{cell},0.5\n")
    assert (record["arch"]["index"], record["arch"]["class"]) == (1832, 309)


def test_tabs_semicolons_and_windows_files_are_read() -> None:
    assert read("arch.name\tacc\nx\t0.5\n", delimiter="tab")[0]["metrics"] == {"acc": 0.5}
    assert read(b"\xef\xbb\xbfarch.name;acc\r\n\r\nx;0.5\r\n", delimiter=";")[0]["metrics"] == {"acc": 0.5}


names = st.text(st.sampled_from("abc 1,\"'\n=-é"), min_size=1, max_size=6)
scalars = st.booleans() | st.integers(-(10**18), 10**18) | names | st.floats(-1e6, 1e6)
keys = st.sampled_from(["seed", "epochs", "odd key", "preset"])


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "arch": st.fixed_dictionaries(
                    {"space": st.just("mine"), "name": names},
                    optional={"depth": st.lists(st.integers()), "classes": scalars},
                ),
                "metrics": st.dictionaries(
                    st.sampled_from(
                        ["acc", "pgd20.8", "odd one", "arch.x", "dataset", "metrics.y", "ge.acc"]
                    ),
                    st.floats(0, 1),
                ),
            },
            optional={
                "dataset": names,
                "train": st.dictionaries(keys, scalars, min_size=1),
                "mine": st.dictionaries(keys, scalars | st.lists(scalars), min_size=1),
                "list": st.lists(scalars, min_size=1),
            },
        ),
        min_size=1,
        max_size=3,
    )
)
@pytest.mark.slow
def test_a_round_trip_loses_nothing_that_a_table_can_express(records: list[dict[str, Any]]) -> None:
    for record, again in zip(records, read(written(records)), strict=True):
        kept = {key: value for key, value in again.items() if key not in ("schema", "evals", "checksums")}
        assert kept == record


def test_columns_stay_as_they_are_beside_what_can_be_counted_anew() -> None:
    arch = {"space": "nasbench201", "name": "nb201-3", "index": 3, "channels": 8, "cells": 1, "macs": 574272}
    (back,) = read(written([{"schema": 1, "arch": arch | {"params": 53002}, "metrics": {"acc": 0.5}}]))
    assert (back["arch"]["params"], back["arch"]["macs"], back["arch"]["cells"]) == (53002, 574272, 1)
    (back,) = read("arch.index,params\n3,7\n")  # where no column says it, it is counted
    assert back["arch"]["class"] == 3 and back["metrics"] == {"params": 7}


def test_a_table_keeps_its_columns_and_their_order() -> None:
    text = written(read("arch.name,acc,pgd20.8,Notes\nx,0.50,0.5,fine\ny,0.25,,\n"))
    assert text == "arch.name,arch.space,acc,pgd20.8,Notes\nx,csv,0.50,0.5,fine\ny,csv,0.25,,\n"


def test_nan_and_infinity_leave_the_rest_of_the_row() -> None:
    told = ConversionReport()
    (record,) = read("arch.name,acc,aa.8,loss\nx,nan,0.5,-inf\n", told)
    assert record["metrics"] == {"aa.8": 0.5} and len(list(told.errors())) == 2
    assert record["evals"][0]["reason"] == "published as nan: a number is nan, which is not finite"


def test_a_text_in_a_mapped_metric_is_named() -> None:
    told = ConversionReport()
    (record,) = read("m,a\nx,high\n", told, map="m=arch.name,a=acc")
    assert record["metrics"] == {} and "found the text 'high' where a number was expected" in next(
        told.errors()
    )


def test_percents_where_fractions_belong_are_noticed() -> None:
    told = ConversionReport()
    (record,) = read("arch.name,acc\nx,94.85\n", told)
    (line,) = told.errors()
    assert record["metrics"] == {} and "for a file in percent, give --scale percent" in line
    assert "table.csv: row 1: acc is 94.85" in line


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (b"y,1,2\n", "Expected 2 fields in line 3, saw 3"),
        (b'"y,0.5\n', "EOF inside string"),
        (b"\xff,0.5\n", "is not UTF-8 .byte 21"),
    ],
)
def test_what_is_no_table_is_said(rows: bytes, message: str) -> None:
    with pytest.raises(Broken, match=message):
        units(b"arch.name,acc\nx,0.5\n" + rows)


def test_cells_that_a_row_lacks_at_its_end_are_empty() -> None:
    assert [record["metrics"] for record in read("arch.name,acc\nx\ny,0.5\n")] == [{}, {"acc": 0.5}]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            "Model,acc\n",
            {},
            r"No column of table\.csv describes the architecture\. Columns: Model, acc\..*'Model=arch",
        ),
        ("a,a\n", {}, "has the column 'a' twice"),
        ("Model,acc\n", {"map": "Modle=arch.name"}, "names the column 'Modle'.* Did you mean 'Model'"),
        ("Model,acc\n", {"map": "Model"}, r"--map has 'Model'\. Expected NAME=VALUE"),
        ("Model,acc\n", {"map": "acc=acc:percents"}, "'percents' is not a unit. Expected percent or"),
        ("Model,acc\n", {"set": "acc=1"}, "--set acc: this is not a field"),
        ("Model,acc\n", {"delimiter": "ab"}, "--delimiter is 'ab'"),
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
    assert "columns without a name are left out (number 1, 4, 5, 6)" in said
    assert read("Unnamed: 0,arch.name\n7,A\n", map="Unnamed: 0=loss")[0]["metrics"] == {"loss": 7}
    with pytest.raises(RbError, match=r"Columns: acc\. Name one: --map 'acc="):
        read(",acc\nA,0.9\n")


@pytest.mark.parametrize("name", ["t.csv", "t.json"])
def test_a_compressed_table_is_called_that(name: str) -> None:
    kind = {"t.csv": "csv", "t.json": "prbench"}[name]
    with pytest.raises(Broken, match=rf"is compressed \(gzip\)\. .*: zcat {name}"):
        reading.units(kind, reading.put(name, gzip.compress(b"arch.name,acc\n")))


def test_an_empty_architecture_is_a_row_that_fails() -> None:
    with pytest.raises(RbError, match="The row's architecture is empty"):
        read("arch.name,acc\n,0.5\n")


def test_a_return_in_a_name_ends_no_row() -> None:
    assert read(written([{"arch": {"name": "a\rb"}, "metrics": {"acc": 0.5}}]))[0]["arch"]["name"] == "a\rb"


def test_an_empty_file_has_no_rows() -> None:
    assert read("") == []


def test_a_table_can_be_read_by_others() -> None:
    text = written([{"arch": {"name": "a,b"}, "metrics": {"acc": 0.1 + 0.2}}])
    assert text == 'arch.name,acc\n"a,b",0.30000000000000004\n'
    assert math.isclose(json.loads(text.splitlines()[1].rpartition(",")[2]), 0.3)


def test_n_and_interval_of_a_metric_on_the_train_split_are_read_back() -> None:
    entry = {"metric": "train.acc", "value": 0.75, "n": 158, "ci95": [0.5, 0.875], "split": "train"}
    own = {"metric": "acc.n", "value": 0.25}
    record = {
        "arch": {"name": "m"},
        "metrics": {"train.acc": 0.75, "acc": 0.5, "acc.n": 0.25},
        "evals": [entry, own],
    }
    (made,) = api.convert("csv", "table.csv", [record])
    assert made["metrics"] == {"train.acc": 0.75, "acc": 0.5, "acc.n": 0.25}
    (read,) = [one for one in made["evals"] if one["metric"] == "train.acc"]
    assert read["n"] == 158 and read["ci95"] == [0.5, 0.875]

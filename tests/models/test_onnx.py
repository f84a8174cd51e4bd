"""Checkpoints that are ONNX models: recognised, asked, converted to torch where this is exact, or refused."""

from __future__ import annotations

import copy
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.datasets import load
from rbtools.errors import Misfit, RbError
from rbtools.models import checkpoint, programs, weights_file
from rbtools.models.answering import AnsweringModel, TwinGradients
from rbtools.store import checksum
from tests import networks
from tests.runner import Record, one, run

SHAPE = (1, 8, 8)
HEAD = b"\x08\x08\x12\x07pytorch\x1a\x03"  # version 8 of the format, by pytorch
CELL = "|nor_conv_3x3~0|+|nor_conv_1x1~0|skip_connect~1|+|skip_connect~0|none~1|nor_conv_1x1~2|"
ARCH = {"space": "nasbench201", "str": CELL, "channels": 4, "cells": 1}
OPTIONS = "--device cpu --dataset npz:own.npz --normalize none"


# --- without the packages -------------------------------------------------------------------------


def test_an_onnx_model_is_recognised_by_its_first_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("weights.pt").write_bytes(HEAD)
    form = programs.format_of_file(Path("weights.pt"), allow_code=False)
    assert form is not None and form.name == "onnx"
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(RbError, match=r"need the package onnx, .* pip install 'rbtools\[onnx\]'\.$"):
        checkpoint.load("weights.pt", shape=SHAPE)


@pytest.mark.parametrize("head", [b"<!DOCTYPE html>", b"\x08\x01\x12\x40", b"\x80\x02}q", b"\x08"])
def test_other_files_are_no_onnx_models_whatever_they_are_called(head: bytes) -> None:
    Path("model.onnx").write_bytes(head)
    assert programs.format_of_file(Path("model.onnx"), allow_code=True) is None


# --- with them ------------------------------------------------------------------------------------


@pytest.fixture
def network() -> nn.Module:
    """A network in own.safetensors, and images in own.npz whose labels are its own."""
    torch.manual_seed(0)
    network = models.build(ARCH, classes=10, shape=SHAPE)
    pixels = load("digits", "test").images[:60]
    images = pixels.float().div(255)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    with torch.no_grad():
        network.train()(images)
        labels = network.eval()(images).argmax(1)
    labels[:10] = torch.arange(10)  # every class is there
    np.savez("own.npz", images=pixels.permute(0, 2, 3, 1).numpy(), labels=labels.numpy())
    Path("own.safetensors").write_bytes(weights_file.to_bytes(network, {"arch": ARCH}))
    return network


def export(network: nn.Module, batch: int = 2, *, fixed: bool = False, **more: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter is deprecated, and the other needs another package
        axes = {} if fixed else {"images": {0: "n"}}
        names: Any = {"input_names": ["images"], "dynamic_axes": axes, "dynamo": False, **more}
        torch.onnx.export(network, (torch.rand(batch, *SHAPE),), "m.onnx", **names)


def graph(text: str, opset: int = 13) -> None:
    """Write a graph `(INPUTS) => (OUTPUTS) { NODES }` with the matrix `w`, of 64 numbers for each class."""
    from onnx import numpy_helper, parser, save

    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> g {text}')
    model.graph.initializer.append(numpy_helper.from_array(MEANS.T.float().numpy(), "w"))
    save(model, "m.onnx")


MEANS = networks.class_means()


def linear(images: Tensor) -> Tensor:
    return images.flatten(1) @ MEANS.T.float()


def loaded(arch: Record | None = None) -> tuple[nn.Module, Record, Record]:
    return checkpoint.load("m.onnx", {"normalize": "none"} if arch is None else arch, shape=SHAPE)


def verdicts(words: str) -> tuple[Record, str]:
    """The metrics and the correct images of an attack at the command line, and what it says."""
    done = run("attack", f"{words} {OPTIONS}")
    record = one(done)
    return {each["metric"]: (each["value"], each["answers"]["bits"]) for each in record["evals"]}, done.stderr


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("opset", [13, 18])
def test_a_network_that_converts_is_attacked_as_the_one_that_it_was_exported_from(
    network: nn.Module, opset: int
) -> None:
    export(network, opset_version=opset)
    found, said = verdicts("pgd --eps 4 --steps 3 --checkpoint m.onnx")
    wanted, _ = verdicts("pgd --eps 4 --steps 3 --checkpoint own.safetensors")
    assert found == wanted and found["pgd3.4"][0] < found["acc"][0]
    assert "m.onnx is checkpoint:onnx, a program" in said and "; returns logits and gradients" in said
    words = "--checkpoint m.onnx --device cpu --n 20 --normalize none"
    record = one(run("attack", f"fgsm --eps 4 {words}"))
    trained = run("train", "--init checkpoint --epochs 0 --device cpu", [record])
    assert trained.exit_code == 1 and "it can be evaluated, but not trained" in trained.stderr


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_quantised_model_is_attacked_by_its_scores_alone(network: nn.Module, kind: str) -> None:
    from onnxruntime import quantization

    export(network)
    if kind == "dynamic":
        quantization.quantize_dynamic("m.onnx", "q.onnx", weight_type=quantization.QuantType.QUInt8)
    else:
        feeds = iter([{"images": networks.images_for(20, SHAPE).numpy()}])
        reader = type(
            "Reader", (quantization.CalibrationDataReader,), {"get_next": lambda _: next(feeds, None)}
        )
        quantization.quantize_static("m.onnx", "q.onnx", reader())
    done = run("attack", f"square --eps 8 --queries 20 --checkpoint q.onnx {OPTIONS}")
    record = one(done)
    assert record["arch"]["answers"] == "logits" and record["metrics"]["acc"] > 0.5
    assert "returns logits without gradients: it is quantised" in done.stderr
    refused = run("attack", "pgd --eps 8 --steps 2 --device cpu", [record])
    assert refused.exit_code == 1
    assert "needs gradients, but the model returns only logits" in refused.stderr


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("reshape", ["Flatten(images)", "Reshape(images, sizes)"])
def test_a_fixed_number_of_images_is_asked_at_a_time(reshape: str) -> None:
    graph(
        "(float[4,1,8,8] images) => (float[4,10] scores) <int64[2] sizes = {4, 64}>"
        f" {{ rows = {reshape} scores = MatMul(rows, w) }}"
    )
    model, arch, _ = loaded()
    assert arch == {"space": "checkpoint", "name": "onnx", "normalize": "none"}
    images = networks.images_for(10, SHAPE).requires_grad_()
    torch.testing.assert_close(model(images), linear(images), rtol=1e-5, atol=1e-5)
    (gradient,) = torch.autograd.grad(model(images)[:, 3].sum(), images)
    torch.testing.assert_close(gradient.flatten(1), MEANS[3].float().expand(10, -1))
    model, _, facts = loaded({"normalize": "none", "answers": "logits"})
    assert "answers" not in facts and not model(images).requires_grad
    torch.testing.assert_close(model(images), linear(images.detach()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.extra
def test_pixels_as_bytes_with_channels_last_are_rounded_and_not_normalised() -> None:
    graph(
        "(uint8[n,8,8,1] images) => (float[n,10] scores)"
        " { pixels = Cast<to: int = 1>(images) rows = Flatten(pixels) scores = MatMul(rows, w) }"
    )
    model, arch, facts = loaded({})
    assert arch["answers"] == "logits" and facts["normalize_from"] == "checkpoint"
    assert facts["answers"] == "logits without gradients: its input has the type uint8"
    images = networks.images_for(5, SHAPE)
    torch.testing.assert_close(model(images), linear(images.mul(255).round()), rtol=1e-5, atol=1e-2)
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(same(images), model(images))
    with pytest.raises(RbError, match=r"takes uint8 pixels\. Leave out --normalize"):
        loaded({"normalize": [[0.5], [0.5]]})


@pytest.mark.slow
@pytest.mark.extra
def test_the_first_output_of_scores_is_taken_and_float_images_may_have_channels_last() -> None:
    graph(
        "(float[n,8,8,1] images) => (int64[n] label, float[n,10] scores)"
        " { rows = Flatten(images) scores = MatMul(rows, w)"
        "   label = ArgMax<axis: int = 1, keepdims: int = 0>(scores) }"
    )
    model, arch, _ = loaded()
    images = networks.images_for(5, SHAPE).requires_grad_()
    torch.testing.assert_close(model(images), linear(images), rtol=1e-5, atol=1e-5)
    assert "answers" not in arch and model(images).requires_grad


@pytest.mark.slow
@pytest.mark.extra
def test_a_graph_that_onnx2torch_does_not_know_answers_with_logits() -> None:
    graph(
        "(float16[n,1,8,8] images) => (float[n,10] scores)"
        " { pixels = Cast<to: int = 1>(images) rows = Flatten(pixels) scores = MatMul(rows, w) }"
    )
    assert loaded()[2]["answers"].endswith("without gradients: its input has the type float16")
    graph(
        "(float[n,1,8,8] images) => (float[n,10] scores)"
        " { rows = Flatten(images) all = MatMul(rows, w) scores = Trilu(all) }",
        opset=14,
    )
    model, arch, facts = loaded()
    assert arch["answers"] == "logits" and "onnx2torch fails with NotImplementedError" in facts["answers"]
    assert isinstance(model.program, AnsweringModel)  # no fast copy of it is made
    with pytest.raises(RbError, match="was converted to torch when its record was created, but cannot"):
        loaded({"space": "checkpoint", "name": "onnx", "normalize": "none"})


REFUSED = {
    "two inputs": (
        "(float[n,1,8,8] a, float[n,1,8,8] b) => (float[n,10] scores)"
        " { both = Add(a, b) rows = Flatten(both) scores = MatMul(rows, w) }",
        "has the inputs a .*, b .*Expected images",
    ),
    "no layout": (
        "(float[n,c,h,v] images) => (float[n,10] scores) { rows = Flatten(images) scores = MatMul(rows, w) }",
        "a fixed number of channels",
    ),
    "other channels": (
        "(float[n,3,8,8] images) => (float[n,3,8,8] scores) { scores = Relu(images) }",
        "takes images with 3 channels",
    ),
    "another size": (
        "(float[n,1,9,9] images) => (float[n,1,9,9] scores) { scores = Relu(images) }",
        "takes images of 9x9 pixels, but the data set has 8x8",
    ),
    "no scores": (
        "(float[n,1,8,8] images) => (float[n,1,8,8] maps) { maps = Relu(images) }",
        r"returns maps \(2, 1, 8, 8\) for 2 images. Expected",
    ),
}


@pytest.mark.slow
@pytest.mark.extra
@pytest.mark.parametrize("case", REFUSED)
def test_a_graph_of_another_form_is_refused(case: str) -> None:
    text, said = REFUSED[case]
    graph(text)
    with pytest.raises(RbError, match=said) as error:
        loaded()
    assert isinstance(error.value, Misfit) == (case == "other channels")


@pytest.mark.slow
@pytest.mark.extra
def test_a_damaged_model_is_refused_and_weights_beside_a_model_belong_to_it() -> None:
    import onnx

    graph("(float[n,1,8,8] images) => (float[n,10] scores) { x = Flatten(images) scores = MatMul(x, w) }")
    whole = Path("m.onnx").read_bytes()
    images = networks.images_for(5, SHAPE)
    onnx.save(onnx.load("m.onnx"), "m.onnx", save_as_external_data=True, location="m.onnx.data")
    torch.testing.assert_close(loaded()[0](images), linear(images), rtol=1e-5, atol=1e-5)
    first = checksum.hash_of_file("m.onnx")
    Path("m.onnx.data").write_bytes(bytes(2560))
    assert checksum.hash_of_file("m.onnx") != first
    Path("m.onnx").rename("other.onnx")
    with pytest.raises(RbError, match=r"are in m\.onnx\.data\. Expected them in the model's own file"):
        checkpoint.load("other.onnx", shape=SHAPE)
    Path("m.onnx").write_bytes(whole[:-900])
    with pytest.raises(RbError, match="looks like an ONNX model but cannot be loaded"):
        loaded()


@pytest.mark.slow
@pytest.mark.extra
def test_gradients_of_a_float_twin_attack_a_quantised_model_whose_verdicts_count(network: nn.Module) -> None:
    from onnxruntime import quantization

    export(network)
    quantization.quantize_dynamic("m.onnx", "q.onnx", weight_type=quantization.QuantType.QUInt8)
    words = f"pgd --eps 8 --steps 3 --checkpoint q.onnx {OPTIONS}"
    record = one(run("attack", f"{words} --gradients-from own.safetensors"))
    twin = record["gradients"]["checkpoint"]
    assert twin == f"sha256:{checksum.hash_of_file('own.safetensors')}" != record["checkpoint"]
    assert {each["metric"]: each.get("gradients_from") for each in record["evals"]} == {
        "acc": twin,
        "pgd3.8": twin,
    }
    assert record["metrics"]["pgd3.8"] < record["metrics"]["acc"]
    one(run("attack", "mi-fgsm --eps 8 --steps 2 --device cpu", [record]))  # the record names the twin
    alone = one(run("attack", f"square --eps 8 --queries 2 --checkpoint q.onnx {OPTIONS}"))
    assert "gradients" not in alone and alone["metrics"]["acc"] == record["metrics"]["acc"]


def test_the_logits_of_a_network_have_the_gradients_of_its_twin() -> None:
    network, twin = networks.linear(SHAPE), networks.linear(SHAPE, seed=1)
    images = networks.images_for(3, SHAPE).requires_grad_()
    logits = TwinGradients(network, twin)(images)
    assert torch.equal(logits, network(images))
    (found,) = torch.autograd.grad(logits[:, 2].sum(), images)
    (wanted,) = torch.autograd.grad(twin(images)[:, 2].sum(), images)
    assert torch.equal(found, wanted)

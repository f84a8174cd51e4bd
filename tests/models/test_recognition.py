"""All networks of torchvision, and the zoo in other repositories' names, recognised from names and shapes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from rbtools import models
from rbtools.errors import RbError
from rbtools.models import checkpoint, load_weights, unpack
from rbtools.models.families import FAMILIES, Inferred, infer
from rbtools.models.meta import meta_init, multiply_adds
from rbtools.models.tensor_names import translation
from rbtools.models.torchvision_import import torchvision
from rbtools.spaces import zoo
from rbtools.zoo import by_digest, external, make_torchvision_table

# A network with the function of one of the zoo gets the zoo's name.
IN_ZOO = {
    **{f"resnet{depth}": {"name": f"resnet{depth}", "stem": "imagenet"} for depth in (18, 34, 50, 101, 152)},
    "vit_b_16": {"name": "vit-b"},
    "vit_b_32": {"name": "vit-b", "patch": 32, "side": 224},
    "vit_l_16": {"name": "vit-l"},
    "vit_l_32": {"name": "vit-l", "patch": 32, "side": 224},
}


@pytest.mark.parametrize("name", external.table())
@pytest.mark.slow
def test_every_torchvision_network_is_recognised_unless_a_tensor_has_another_shape(name):
    state = make_torchvision_table.network(name, 7).state_dict()
    wrapped = {f"module.{key}": value for key, value in state.items()}
    assert unpack.take_normalisation(wrapped, "model.pt", {}) == (None, None)
    assert unpack.strip(wrapped) == ("module.", []) and wrapped == state
    arch = {"space": "zoo", **IN_ZOO[name]} if name in IN_ZOO else {"space": "torchvision", "name": name}
    without = {key: value for key, value in state.items() if not key.endswith("num_batches_tracked")}
    assert infer(without) == Inferred(arch, 7, 3)
    key = next(key for key, value in state.items() if value.ndim == 1 and value.numel() > 7)
    other = {**state, key: torch.empty(3, device="meta")}
    with pytest.raises(RbError, match=rf"not recognised|of another shape: {re.escape(key)} 3, expected"):
        found = infer(other)
        with meta_init():
            hollow = models.build(found.arch, classes=7, shape=(3, 224, 224))
        load_weights.load_into(hollow, checkpoint.Checkpoint(Path("m.pt"), other))


def test_the_tables_have_every_network_once():
    assert list(external.table()) == make_torchvision_table.names()
    assert len({about["digest"] for about in external.table().values()}) == len(external.table())
    names = [name for about in external.timm_table().values() for name in about["names"]]
    assert len(external.timm_table()) > 700 and len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["googlenet", "squeezenet1_1", "alexnet"])
def test_the_table_is_what_the_survey_finds(name):
    about = external.torchvision(name)
    options = {"aux_logits": False} if about["auxiliary"] else {}
    network = make_torchvision_table.network(name, 12, **options).to("meta")
    base, each = about["params"]
    assert sum(p.numel() for p in network.parameters()) == base + 12 * each
    for side, (fixed, per_class) in about["macs"].items():
        images = torch.empty(2, 3, int(side), int(side), device="meta")
        assert multiply_adds(network, images) == fixed + 12 * per_class
    assert by_digest.digest(network.state_dict(), about["head"], about["stem"]) == about["digest"]
    assert make_torchvision_table._takes(network, about["smallest"])
    assert not make_torchvision_table._takes(network, about["smallest"] - 1)


@pytest.mark.parametrize("name", ["alexnet", "mobilenet_v2", "vit_h_14"])
def test_counts_are_those_that_torchvision_publishes(name):
    """vit_h_14's are of 224x224 images, in its linear weights."""
    weights = [w.meta for w in torchvision.models.get_model_weights(name)]
    arch = external.Torchvision().describe({"space": "torchvision", "name": name}, 1000, (3, 224, 224))
    assert arch["params"] in {meta["num_params"] for meta in weights}
    assert any(arch["macs"] / 1e9 == pytest.approx(meta["_ops"], rel=1e-3) for meta in weights)


@pytest.mark.slow
def test_torchvision_networks_for_other_images():
    arch = {"space": "torchvision", "name": "squeezenet1_1"}
    network = models.build(arch, classes=3, shape=(1, 64, 64))
    counted = external.Torchvision().describe(arch, 3, (1, 64, 64))
    assert sum(p.numel() for p in network.parameters()) == counted["params"]
    assert "macs" not in counted
    assert infer(network.state_dict()) == Inferred(arch, 3, 1)
    assert network.eval()(torch.rand(1, 1, 64, 64)).shape == (1, 3)
    with pytest.raises(RbError, match=r"alexnet needs .* at least 63 pixels, but these have 32x32"):
        models.build({"space": "torchvision", "name": "alexnet"}, classes=3, shape=(3, 32, 32))
    with meta_init():
        network = models.build({"space": "torchvision", "name": "vit_b_32"}, classes=3, shape=(3, 32, 32))
    assert network.to("meta")(torch.empty(2, 3, 32, 32, device="meta")).shape == (2, 3)  # it resizes


def zoo_state(name, classes=7, channels=3, **fields):
    shape = (channels, 32, 32) if name != "simplecnn" else (channels, 28, 28)
    with meta_init():
        network = models.build({"space": "zoo", "name": name, **fields}, classes=classes, shape=shape)
    return network.state_dict()


@pytest.mark.parametrize("name", [*zoo.FORMS, "wrn-16-1"])
def test_the_zoo_is_recognised_from_its_own_names(name):
    found = infer(zoo_state(name, channels=1))
    stem = {"stem": "cifar"} if re.match(r"resnet\d", name) else {}
    same = {"deit-s": "vit-s"}.get(name, name)  # one network, two recipes
    assert found == Inferred({"space": "zoo", "name": same, **stem}, 7, 1)


def timm_names(state):
    """timm's and DeiT's names, as their files have them."""
    words = """class_token cls_token, encoder.pos_embedding pos_embed, conv_proj. patch_embed.proj.,
    encoder.ln. norm., heads.head. head., encoder.layers.encoder_layer_ blocks., .ln_1. .norm1.,
    .ln_2. .norm2., .self_attention.in_proj_ .attn.qkv., .self_attention.out_proj. .attn.proj.,
    .mlp.0. .mlp.fc1., .mlp.3. .mlp.fc2."""
    for ours, theirs in map(str.split, words.split(",")):
        state = {key.replace(ours, theirs): value for key, value in state.items()}
    return state


def torchvision_names(state):
    words = {"shortcut": "downsample", "linear": "fc"}
    return {".".join(words.get(word, word) for word in key.split(".")): value for key, value in state.items()}


def mart_names(state):
    """TRADES and MART save a block that their forward pass leaves out."""
    unused = {key.replace("block1.", "sub_block1.", 1): v for key, v in state.items() if "block1." in key[:7]}
    return {**state, **unused}


def nested_head(state):
    """The names after `model.fc = nn.Sequential(nn.Dropout(), nn.Linear(...))`."""
    return {re.sub(r"^(linear|fc)\.", "fc.1.", key): value for key, value in state.items()}


@pytest.mark.parametrize(
    ("name", "renamed"),
    [
        *(("resnet50", torchvision_names), ("resnet18", nested_head)),
        *(("wrn-34-10", mart_names), ("deit-ti", timm_names)),
    ],
)
def test_other_names_for_the_same_network(name, renamed):
    state = zoo_state(name)
    found = infer(renamed(state))
    assert (found.arch["name"], found.classes) == (name, 7)
    new = translation(renamed(state), state)
    assert {new[key]: value for key, value in renamed(state).items() if key in new} == state


def test_near_misses_are_not_recognised_and_the_message_says_what_is():
    resnet, norm = zoo_state("resnet18"), nn.BatchNorm2d(64).state_dict()
    for state in (
        *({k: v for k, v in resnet.items() if not k.startswith(start)} for start in ("bn1", "layer3.1.")),
        {**resnet, "conv1.weight": torch.empty(64, 3, 5, 5)},
        # A norm behind the stem, as kuangliu's SENet18.
        zoo_state("preactresnet18-kuangliu") | {f"bn1.{key}": value for key, value in norm.items()},
        {**timm_names(zoo_state("deit-ti")), "blocks.0.ls1.gamma": torch.empty(2)},  # layer scale
        {k: v[:8] for k, v in zoo_state("vgg11").items() if v.ndim},
        {"embed.weight": torch.empty(9, 2), "lm_head.weight": torch.empty(9, 2)},  # a language model
    ):
        with pytest.raises(RbError, match="not recognised") as error:
            infer(state)
        assert all(words in str(error.value) for words in (*FAMILIES, "Say which network it is with --arch"))


def test_a_network_of_timm_is_recognised_by_its_digest_and_asked_about_where_several_have_it(monkeypatch):
    state = {"first.weight": torch.zeros(4, 3, 3, 3), "last.weight": torch.zeros(7, 4)}
    key = by_digest.digest(state, "last.weight", "first.weight")
    row = {"head": "last.weight", "stem": "first.weight"}
    monkeypatch.setattr(external, "timm_table", lambda: {key: {**row, "names": ["one"]}})
    assert infer(state) == Inferred({"space": "timm", "name": "one"}, 7, 3)
    monkeypatch.setattr(external, "timm_table", lambda: {key: {**row, "names": ["one", "two"]}})
    with pytest.raises(RbError, match=r"2 networks of timm.*--arch timm:one or --arch timm:two"):
        infer(state)
    assert infer(state, {"args": {"model": "two.of_a_tag"}}).arch["name"] == "two"
    with pytest.raises(RbError, match="2 networks of timm"):
        infer(state, {"args": {"model": "three"}})

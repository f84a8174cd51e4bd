"""--init timm: published weights fitted to other sides and patches, against timm's own functions."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from rbtools.errors import RbError
from rbtools.models import checkpoint
from rbtools.models.meta import meta_init
from rbtools.store import Store
from rbtools.trainer import train_model
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS
from rbtools.zoo import libraries, timm_2020, timm_init
from rbtools.zoo.libraries import import_timm
from tests.trainings import run_in, weights
from tests.zoo.conftest import snapshot_in

timm = import_timm()
NAME = "test_vit"  # width 64, depth 6; patches of 16 pixels in images of 160
ARCH = {"space": "timm", "name": NAME, "side": 8, "patch": 2}
RECIPE = Recipe(epochs=0, batch_size=721, init="timm")


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    torch.manual_seed(1)
    network = timm.create_model(NAME)
    return {key: value + 0.02 * torch.randn_like(value) for key, value in network.state_dict().items()}


@pytest.fixture
def file(state: dict[str, Tensor], tmp_path: Path) -> Path:
    path = tmp_path / "vit.pth"
    torch.save({"model": state}, path)
    return path


def trained(recipe: Recipe, arch: dict[str, Any] = ARCH, **options: Any) -> dict[str, Any]:
    record, run = {"schema": 1, "arch": arch}, run_in(dataset="digits", **options)
    return train_model.train(record, METHODS.build("erm"), recipe, run)


def of_file(file: Path, **changes: Any) -> Recipe:
    return dataclasses.replace(RECIPE, init_file=str(file), **changes)


def test_weights_of_a_file_are_fitted_as_timm_fits_them(file: Path, state: dict[str, Tensor]) -> None:
    record = trained(of_file(file))
    found = weights(record)
    patches = timm.layers.resample_patch_embed(state["patch_embed.proj.weight"], [2, 2])
    expected = {
        "pos_embed": timm.layers.resample_abs_pos_embed(state["pos_embed"], [4, 4]),
        "patch_embed.proj.weight": patches.sum(1, keepdim=True),  # digits have one channel
    }
    for key, value in {**state, **expected}.items():
        if not key.startswith("head."):
            torch.testing.assert_close(found[key], value, msg=key)
    assert found["head.weight"].shape == (10, 64)
    sizes = {"img_size": 8, "patch_size": 2, "num_classes": 10, "in_chans": 1}
    overlay = {"file": str(file)}
    own = timm.create_model(NAME, pretrained=True, pretrained_cfg_overlay=overlay, **sizes).eval()
    own.head.load_state_dict({word: found[f"head.{word}"] for word in ("weight", "bias")})
    stored = Store("rb-store").object(record["checkpoint"])
    model, arch, _ = checkpoint.load(stored, record["arch"], classes=10, shape=(1, 8, 8))
    assert "preprocessing" not in arch  # timm's is for images of another size
    images = torch.rand(5, 1, 8, 8)
    mean, std = record["train"]["config"]["normalize"]
    torch.testing.assert_close(model(images), own((images - mean[0]) / std[0]), rtol=1e-4, atol=1e-5)


def test_prbench_sums_kernels_and_interpolates_positions(file: Path, state: dict[str, Tensor]) -> None:
    found = weights(trained(of_file(file, resample="prbench")))
    positions = timm.layers.resample_abs_pos_embed(
        state["pos_embed"], [4, 4], interpolation="bilinear", antialias=False
    )
    torch.testing.assert_close(found["pos_embed"], positions)
    # The summed kernel on an image is the old one on each pixel repeated 8 times a side.
    images = torch.rand(3, 3, 8, 8)
    large = F.interpolate(images, scale_factor=8, mode="nearest")
    kernel = state["patch_embed.proj.weight"]
    new = timm_init.summed(kernel, 2)
    torch.testing.assert_close(
        F.conv2d(images, new, stride=2), F.conv2d(large, kernel, stride=16), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(found["patch_embed.proj.weight"], new.sum(1, keepdim=True))
    assert not torch.allclose(found["pos_embed"], weights(trained(of_file(file)))["pos_embed"])


def test_a_training_is_found_by_the_content_of_its_file_and_the_way_of_fitting(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = trained(of_file(file))
    digest = f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert record["train"]["init"] == {"timm": NAME, "file": digest}
    assert record["train"]["config"]["init"] == "timm" and "init_file" not in record["train"]["config"]
    copy = tmp_path / "copy.pth"
    copy.write_bytes(file.read_bytes())
    with monkeypatch.context() as without:
        without.delattr(train_model, "_fit")
        assert trained(of_file(copy)) == record  # from the store
    summed = trained(of_file(file, resample="prbench"))
    assert summed["train"]["config"]["resample"] == "prbench"
    assert summed["checkpoint"] != record["checkpoint"]
    head = weights(record)["head.weight"]
    assert torch.equal(head, weights(summed)["head.weight"])
    assert not torch.equal(head, weights(trained(of_file(file), seed=1))["head.weight"])


def test_timms_own_weights_come_from_the_cache_of_the_hub_and_never_without_asking(
    state: dict[str, Tensor], hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: pytest.fail("it downloads"))
    with pytest.raises(RbError, match=r"not in the cache of the Hub.*--download.*--init-file FILE"):
        trained(RECIPE)
    repository = f"timm/{NAME}.{timm.get_pretrained_cfg(NAME).tag}"
    save_file(state, snapshot_in(hub_cache, repository) / "model.safetensors")
    record = trained(RECIPE)
    assert record["train"]["init"] == {"timm": NAME}
    torch.testing.assert_close(weights(record)["norm.weight"], state["norm.weight"])


def test_weights_that_do_not_fit_are_refused(file: Path, state: dict[str, Tensor], tmp_path: Path) -> None:
    with pytest.raises(RbError, match=r"--init-file nowhere\.pth is not a file"):
        trained(dataclasses.replace(RECIPE, init_file="nowhere.pth"))
    short = tmp_path / "short.pth"
    torch.save({key: value for key, value in state.items() if "blocks.3." not in key}, short)
    with pytest.raises(RbError, match=r"tensors of timm's test_vit, such as blocks\.3\.norm1\.weight"):
        trained(of_file(short))
    torch.save({**state, "norm.weight": torch.ones(65)}, short)
    with pytest.raises(RbError, match=r"do not fit timm's test_vit: .*norm\.weight"):
        trained(of_file(short))
    for message, resample, arch in (
        ("16 is not a multiple of 3", "prbench", {**ARCH, "side": 9, "patch": 3}),
        ("8 pixels cannot be divided into patches of 3", "timm", {**ARCH, "patch": 3}),
    ):
        with pytest.raises(RbError, match=message):
            trained(of_file(file, resample=resample), arch)
    with pytest.raises(RbError, match="24 positions of patches, which do not form a square"):
        timm_init.interpolated(torch.zeros(1, 25, 4), (4, 4))


@pytest.mark.parametrize(
    ("name", "params"), [("deit_tiny_patch16_224", 5_362_762), ("vit_small_patch16_224_2020", 47_338_762)]
)
def test_transformers_at_32_pixels_have_the_sizes_of_prbenchs(name: str, params: int) -> None:
    """65 tokens of patches of 4 pixels; the counts are those of wellzline/PRBenchmark's networks."""
    arch = {"space": "timm", "name": name, "side": 32, "patch": 4}
    with meta_init():
        network = libraries.from_timm(arch, classes=10, shape=(3, 32, 32))
    assert sum(value.numel() for value in network.parameters()) == params
    assert tuple(network.state_dict()["pos_embed"].shape[:2]) == (1, 65)


def test_the_vit_s_of_2020_scales_attention_by_its_width() -> None:
    torch.manual_seed(0)
    network = timm.create_model(timm_2020.NAME, depth=1, img_size=8, patch_size=4, num_classes=3).eval()
    attention, tokens = network.blocks[0].attn, torch.randn(2, 5, 768)
    queries, keys, values = (tokens @ attention.qkv.weight.T).reshape(2, 5, 3, 8, 96).permute(2, 0, 3, 1, 4)
    mixed = torch.softmax(queries @ keys.mT / 768**0.5, -1) @ values
    expected = attention.proj(mixed.transpose(1, 2).reshape(2, 5, 768))
    torch.testing.assert_close(attention(tokens), expected)
    assert attention.qkv.bias is None and network.norm.eps == 1e-5

"""--checkpoint with the name of published weights: hf:, timm: and torchvision:."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from rbtools.datasets.preprocessing import parse
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs import published_weights
from rbtools.models import checkpoint
from rbtools.models.torchvision_import import torchvision
from rbtools.zoo import transformers_config
from rbtools.zoo.libraries import import_timm
from tests.runner import one, run
from tests.zoo.conftest import COMMIT, snapshot_in
from tests.zoo.test_transformers_names import filled, resnet

timm = import_timm()

NAME = "mobilenetv3_small_050"
MEAN, STD = [0.3], [0.7]
IMAGES = {"mean": MEAN, "std": STD, "input_size": [1, 64, 64], "crop_pct": 0.875, "interpolation": "bicubic"}


@pytest.fixture
def hub(hub_cache: Path) -> Path:
    """A cache of the Hub with the repository me/small, whose network timm made at random."""
    snapshot = snapshot_in(hub_cache, "me/small")
    config = {"architecture": NAME, "num_classes": 10, "pretrained_cfg": IMAGES}
    (snapshot / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    network = timm.create_model(NAME, num_classes=10, in_chans=1)
    save_file(network.state_dict(), snapshot / "model.safetensors")
    return snapshot


TEACHER = "DeiTForImageClassificationWithTeacher"
SHORTEST, BOTH, SMALL = {"shortest_edge": 224}, {"height": 256, "width": 256}, {"height": 96, "width": 96}


@pytest.mark.parametrize(
    ("images", "preprocessing"),
    [
        ({"resample": 3, "size": 224, "crop_pct": 0.875}, "bicubic-256-224"),
        ({"resample": 3, "size": {"shortest_edge": 384}, "crop_pct": 1.0}, "squash-bicubic-384-384"),
        ({"resample": 2, "size": 224}, "squash-bilinear-224-224"),
        ({"resample": 3, "size": BOTH, "do_center_crop": True, "crop_size": 224}, "squash-bicubic-256-224"),
        ({"resample": 3, "size": SHORTEST, "do_center_crop": True, "crop_size": SMALL}, "bicubic-224-96"),
        ({"resample": 3, "size": SHORTEST}, None),
        ({"resample": 2, "size": BOTH, "do_resize": False}, None),
    ],
)
def test_a_preprocessor_of_transformers_is_a_preprocessing_of_data_sets(
    images: dict[str, Any], preprocessing: str | None
) -> None:
    fields = transformers_config.images({"image_mean": [0.1], "image_std": [0.5], **images}, "me/small")
    assert fields.get("preprocessing") == preprocessing
    assert fields["normalize"] == [[0.1], [0.5]]
    if preprocessing is not None:
        parse(preprocessing)  # raises RbError for a text that data sets do not know


@pytest.mark.slow
def test_a_classifier_of_transformers_is_recognised_and_brings_its_preprocessing(hub: Path) -> None:
    state = {key: value for key, value in filled(resnet()).items() if "classifier" not in key}
    state["resnet.embedder.embedder.convolution.weight"] = torch.ones(64, 1, 7, 7) / 49
    for key in [key for key in state if "running" in key]:
        state[key] = torch.full_like(state[key], float(key.endswith("var")))  # a fresh network's
    state |= filled({"classifier.1.weight": (10, 512), "classifier.1.bias": (10,)})
    save_file(state, hub / "model.safetensors")
    config = {"architectures": ["ResNetForImageClassification"], "hidden_act": "relu", "model_type": "resnet"}
    (hub / "config.json").write_text(json.dumps(config))
    images = {"image_mean": MEAN, "image_std": STD, "resample": 3, "size": 224, "crop_pct": 0.875}
    (hub / "preprocessor_config.json").write_text(json.dumps(images))
    arch = one(fgsm("hf:me/small"))["arch"]
    assert (arch["space"], arch["name"], arch["stem"]) == ("zoo", "resnet18", "imagenet")
    assert (arch["normalize"], arch["preprocessing"]) == ([MEAN, STD], "bicubic-256-224")
    (hub / "preprocessor_config.json").write_text(json.dumps({**images, "rescale_factor": 1}))
    assert "not scaled to [0, 1]" in refusal("hf:me/small")


def fgsm(name: str) -> Result:
    return run("attack", f"fgsm --eps 4 --n 10 --dataset digits --checkpoint {name}")


def refusal(name: str) -> str:
    """What is said of a name that is refused, on one line."""
    result = fgsm(name)
    assert result.exit_code == 1
    return " ".join(result.stderr.split())


@pytest.mark.slow
def test_a_downloaded_file_has_the_configuration_beside_it(hub: Path) -> None:
    file, config = str(hub / "model.safetensors"), hub / "config.json"
    arch = one(fgsm(file))["arch"]
    assert (arch["name"], arch["normalize"], arch["preprocessing"]) == (NAME, [MEAN, STD], "bicubic-73-64")
    config.write_text('{"architectures": ["BertModel"]}')
    assert "a record for other tools: --normalize" in fgsm(file).stderr


@pytest.mark.slow
def test_a_repository_of_the_hub_is_its_network_normalisation_and_preprocessing(hub: Path) -> None:
    made = one(fgsm("hf:me/small"))
    arch = made["arch"]
    assert (arch["space"], arch["name"], arch["preprocessing"]) == ("timm", NAME, "bicubic-73-64")
    assert arch["normalize"] == [MEAN, STD]
    assert made["recognised"]["weights"] == f"hf:me/small@{COMMIT}"
    file = hub / "model.safetensors"
    model, _, _ = checkpoint.load(file, arch, classes=10, shape=(1, 8, 8))
    network = timm.create_model(NAME, num_classes=10, in_chans=1).eval()
    timm.models.load_checkpoint(network, str(file))
    images = torch.rand(3, 1, 8, 8)
    torch.testing.assert_close(model(images), network((images - MEAN[0]) / STD[0]))


@pytest.mark.slow
def test_timm_s_own_weights_are_found_by_name(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = timm.models.PretrainedCfg(hf_hub_id="me/small", tag="", **{**IMAGES, "input_size": (1, 64, 64)})
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: cfg)
    made = one(fgsm(f"timm:{NAME}"))
    assert made["arch"]["normalize"] == [MEAN, STD]
    assert made["recognised"]["weights"] == f"hf:me/small@{COMMIT}"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "beit", "architectures": ["BeitForImageClassification"]}, "is BeitForImageClass"),
        ({"architectures": ["ViTForImageClassification"], "hidden_act": "relu"}, "hidden_act 'relu'"),
        ({"architectures": ["ViTForImageClassification"], "num_attention_heads": 8}, "64 channels each"),
        ({"architectures": ["ViTForImageClassification"], "layer_norm_eps": 1e-3}, "layer_norm_eps 0.001"),
        ({"architectures": [TEACHER], "hidden_size": 256, "num_attention_heads": 4}, "width 256"),
        ({"architectures": ["ResNetForImageClassification"], "downsample_in_bottleneck": True}, "downsample"),
        ({"architecture": NAME, "model_args": {"width": 2}}, "with changed arguments (width)"),
        ({"architecture": NAME, "pretrained_cfg": {"mean": ["x"], "std": [1]}}, "is damaged"),
        ({"architecture": "hf-hub:other/name"}, "timm model"),
        ([], "is not a JSON object"),
        (None, "is damaged"),
    ],
)
def test_a_configuration_that_cannot_be_followed_is_refused(hub: Path, config: Any, words: str) -> None:
    (hub / "config.json").write_text("{" if config is None else json.dumps(config))
    assert words in refusal("hf:me/small")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("timm:resnet1", "timm model"),
        ("torchvision:resnet18:V9", "IMAGENET1K_V1"),
        ("torchvision:resnet18", "are not in torch's cache"),
        ("hf:nobody/nothing", "is not in the cache of the Hub"),
    ],
)
def test_a_name_that_is_nowhere_is_an_error_with_the_next_step(
    hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, words: str
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert words in refusal(name)


def test_torchvisions_weights_bring_their_transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    torch.manual_seed(0)
    network = torchvision.models.get_model("mobilenet_v3_small", num_classes=1000)
    (tmp_path / "checkpoints").mkdir()
    file = tmp_path / "checkpoints" / "net.pth"
    torch.save(network.state_dict(), file)
    named = file.rename(file.with_name(f"net-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.pth"))
    weights = torchvision.models.MobileNet_V3_Small_Weights.IMAGENET1K_V1
    monkeypatch.setattr(weights.value, "url", f"https://nowhere.test/{named.name}")
    made = one(run("arch", "--from-checkpoint torchvision:mobilenet_v3_small"))
    assert made["arch"]["preprocessing"] == "bilinear-256-224"
    assert made["arch"]["normalize"] == [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]
    assert made["recognised"]["weights"] == "torchvision:mobilenet_v3_small:IMAGENET1K_V1"
    with named.open("ab") as stream:
        stream.write(b"x")
    changed = run("arch", "--from-checkpoint torchvision:mobilenet_v3_small")
    assert "is not the file that torchvision publishes" in " ".join(changed.stderr.split())


@pytest.mark.parametrize("name", ["small", "./net", "org/-net", "org/net--2", "org/" + "n" * 99, "~/net"])
def test_what_is_no_name_of_the_hub_is_one_sentence(name: str) -> None:
    with pytest.raises(RbError, match=r"does not name a repository of the Hub\. Expected") as error:
        published_weights.find(f"hf:{name}", Run.of("rb-test"))
    assert ("For a local file, write --checkpoint FILE." in str(error.value)) == (name[0] in ".~")

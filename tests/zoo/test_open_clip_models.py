"""Zero-shot classifiers of open_clip: their heads, and the files of prompts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.inputs.checkpoints import CheckpointHints
from rbtools.models import checkpoint
from rbtools.models.recognise import infer
from rbtools.spaces import prompts
from rbtools.zoo.open_clip_models import ZeroShotCLIP, import_open_clip

TEMPLATES = ("a photo of a {}.", "a drawing of a {}.")
NAMES = ("cat", "dog", "barn owl")


class TinyCLIP(nn.Module):
    """Embeddings of the mean color and of the mean token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.visual, self.text = nn.Linear(3, 4), nn.Embedding(50, 4)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))
        self.texts = 0

    def encode_image(self, images: Tensor, normalize: bool) -> Tensor:
        return F.normalize(self.visual(images.mean((2, 3))), dim=-1)

    def encode_text(self, tokens: Tensor, normalize: bool) -> Tensor:
        self.texts += len(tokens)
        return F.normalize(self.text(tokens).mean(1), dim=-1)


@torch.no_grad()
def test_the_head_is_the_mean_of_the_prompts_and_is_computed_once() -> None:
    clip = TinyCLIP()
    tokens = [torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7, 8, 9]])]
    network = ZeroShotCLIP(clip, tokens, [], [])
    network.load_state_dict({key: value + 0.1 for key, value in clip.state_dict().items()})
    images = torch.rand(5, 3, 8, 8)
    logits = [network(images), network(images)][1]
    assert clip.texts == 3
    rows = [F.normalize(clip.encode_text(one, True).mean(0), dim=-1) for one in tokens]
    expected = clip.logit_scale.exp() * clip.encode_image(images, True) @ torch.stack(rows).T
    torch.testing.assert_close(logits, expected)
    assert set(network.state_dict()) == set(clip.state_dict())


@pytest.mark.skipif(importlib.util.find_spec("open_clip") is None, reason="open_clip is not installed")
@torch.no_grad()
def test_a_model_of_open_clip_gives_its_logits(tmp_path: Path) -> None:
    open_clip = import_open_clip()
    name = "ViT-S-32-alt"
    theirs = open_clip.create_model(name, pretrained=None, load_weights=False).eval()
    file = tmp_path / "m.pt"
    torch.save({"state_dict": {f"module.{key}": value for key, value in theirs.state_dict().items()}}, file)
    listed = tmp_path / "prompts.txt"
    listed.write_text("\n".join([*NAMES, *TEMPLATES]))
    arch = {"space": "open_clip", "name": name, "normalize": [[0.5] * 3, [0.2] * 3]}
    arch |= {"prompts": prompts.digest(str(listed)), "prompts_file": str(listed)}
    ours, arch, _ = checkpoint.load(file, arch, classes=len(NAMES), shape=(3, 224, 224))
    assert arch["preprocessing"] == "bicubic-224-224"
    images = torch.rand(2, 3, 224, 224)
    head = open_clip.build_zero_shot_classifier(
        theirs, open_clip.get_tokenizer(name), NAMES, [template.format for template in TEMPLATES]
    )
    features = theirs.encode_image((images - 0.5) / 0.2, normalize=True)
    torch.testing.assert_close(ours(images), theirs.logit_scale.exp() * features @ head)
    listed.write_text("another")
    with pytest.raises(RbError, match="has changed since the record was made"):
        checkpoint.load(file, arch, classes=len(NAMES), shape=(3, 224, 224))


def test_a_clip_model_without_its_name_is_said_to_be_one() -> None:
    state = {"logit_scale": torch.tensor(1.0), "visual.conv1.weight": torch.zeros(2, 3, 4, 4)}
    with pytest.raises(RbError, match=r"--arch open_clip:NAME --prompts FILE"):
        infer(state)


def test_prompts_and_a_zero_shot_classifier_need_each_other() -> None:
    run = Run.of("rb-attack")
    with pytest.raises(RbError, match=r"needs the names of its classes. Write --arch open_clip:ViT"):
        CheckpointHints("open_clip:ViT-B-32").given(run)
    with pytest.raises(RbError, match="Write --arch open_clip:NAME --prompts FILE"):
        CheckpointHints("resnet18", prompts="p.txt").given(run)


def written(tmp_path: Path, text: str) -> str:
    file = tmp_path / "prompts"
    file.write_text(text)
    return str(file)


WHOLE = [["a cat.", "one cat"], ["a dog.", "one dog"]]
READ = {
    "lines": ("cat\n\ndog\na {}.\none {}\n", WHOLE),
    "templates first": ("{}\ncat\ndog", [["cat"], ["dog"]]),
    "a JSON list": ('["cat", "dog"]', [["cat"], ["dog"]]),
    "JSON": ('{"classes": ["cat", "dog"], "templates": ["a {}.", "one {}"]}', WHOLE),
    "prompts of a class": ('{"classes": [["x"], "dog"], "templates": ["a {}."]}', [["x"], ["a dog."]]),
}


@pytest.mark.parametrize("case", READ)
def test_a_file_of_prompts_is_read(case: str, tmp_path: Path) -> None:
    text, expected = READ[case]
    assert prompts.read(written(tmp_path, text), 2) == expected


REFUSED = {
    "another number": ("cat\ndog\nowl", "has 3 classes, and the data set has 2"),
    "an object of others": ('{"cat": 0}', "JSON of another layout"),
    "a class without prompts": ('[[], "dog"]', "JSON of another layout"),
    "a template without its blank": ('{"classes": ["a"], "templates": ["c"]}', "template 'c' without {}"),
    "damaged": ('["cat"', "begins as JSON and is none"),
    "nested without end": ("[" * 100_000, "begins as JSON and is none"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_another_file_of_prompts_is_refused(case: str, tmp_path: Path) -> None:
    text, words = REFUSED[case]
    with pytest.raises(RbError, match=words):
        prompts.read(written(tmp_path, text), 2)


def test_a_file_of_prompts_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RbError, match="cannot be read: No such file"):
        prompts.digest(str(tmp_path / "none"))
    (tmp_path / "b").write_bytes(b"a\xff")
    with pytest.raises(RbError, match="no text in UTF-8"):
        prompts.read(str(tmp_path / "b"), 2)
    for endless in ("/dev/zero", str(tmp_path)):
        with pytest.raises(RbError, match=r"is no plain file|Is a directory"):
            prompts.read(endless, 2)


def test_the_classes_of_the_data_set_in_another_order_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, "Barn Owl\ncat\na {}")
    with pytest.raises(RbError, match="another order: class 0 is 'barn owl' there and 'cat'"):
        prompts.refuse_other_order(file, ["cat", "barn_owl"])
    prompts.refuse_other_order(file, ["barn owl", "cat"])
    prompts.refuse_other_order(file, ["0", "1"])

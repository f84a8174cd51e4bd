"""`rbtools.fit`: a module in memory is trained as rb-train trains it, and nothing is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import rbtools
from rbtools import datasets, spaces
from rbtools.errors import RbError
from rbtools.models import checkpoint
from rbtools.trainer import init
from rbtools.trainer.fit import Fit
from rbtools.trainer.recipe import Recipe
from rbtools.trainer.train_model import train
from rbtools.training import METHODS
from rbtools.training.trades import TRADES
from tests.trainings import ARCH, history, run_in

HOW: dict[str, Any] = {"epochs": 2, "batch_size": 500, "lr": 0.1, "augment": ("crop", "flip")}


def network(seed: int = 0) -> nn.Module:
    """The network that rb-train starts from."""
    about = datasets.describe("digits")
    return init.fresh(spaces.describe(ARCH, about.classes, about.shape), about, seed)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))


def some(count: int = 40) -> tuple[Tensor, Tensor]:
    split = datasets.load("digits", "train")
    return split.images[:count], split.labels[:count]


SHORT: dict[str, Any] = {"epochs": 1, "batch_size": 20, "val": 0.0, "device": "cpu"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters", "how"),
    [
        ("erm", {}, {"label_smoothing": 0.1, "micro_batch": 300}),
        ("trades", {"attack_steps": 2}, {"val": 0.1, "select": "best", "epochs": 3}),
        ("fgsm-pgi", {}, {"regularize": ("cutout", "mixup"), "ema": 0.9}),
        ("pgd", {"attack_steps": 2}, {"regularize": ("awp",), "output": "random"}),
    ],
)
def test_weights_are_those_of_rb_train(name: str, parameters: dict[str, Any], how: dict[str, Any]) -> None:
    torch.set_num_threads(1)  # as rb-train chooses for this network
    method, run = METHODS.build(name, **parameters), run_in("st", seed=3)
    record = train({"schema": 1, "arch": ARCH}, method, Recipe(**{**HOW, "val": 0.02, **how}), run)
    done = rbtools.fit(
        network(3), "digits", name, seed=3, device="cpu", precision="fp32", **{**HOW, **how}, **parameters
    )
    found, wanted = done.model.network.state_dict(), run.store.object(record["checkpoint"])
    torch.testing.assert_close(found, checkpoint.read(wanted).state, rtol=0, atol=0)
    assert {name: values for name, values in done.history.items() if name != "seconds"} == history(record)
    assert done.passes == record["train"]["passes"]
    assert done.best_epoch == record["train"].get("checkpoints", {}).get("best_epoch")


def test_every_form_of_the_images_gives_the_same_weights() -> None:
    images, labels = some()
    pixels = images.float() / 255
    forms: list[Any] = [
        (images, labels),
        [pixels.numpy(), labels.numpy()],
        (pixels.double(), labels.int()),
        TensorDataset(pixels, labels),
        [(image, int(label)) for image, label in zip(images, labels, strict=True)],
        DataLoader(TensorDataset(pixels, labels), batch_size=7),
    ]
    found = []
    for data in forms:
        how = {"augment": ("crop-reflect", "flip"), "regularize": "cutout", "attack_steps": 1, **SHORT}
        done = rbtools.fit(plain(), data, "pgd", **how)
        found.append(torch.cat([value.flatten() for value in done.model.state_dict().values()]))
    assert all(torch.equal(found[0], one) for one in found[1:])
    assert not torch.equal(found[0], torch.cat([v.flatten() for v in plain().state_dict().values()]))


def test_the_module_is_trained_in_place_and_otherwise_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 10))
    frozen = model[3].requires_grad_(False)
    model.train()
    model[1].eval()
    parameters, modes = list(model.parameters()), [one.training for one in model.modules()]
    before = [value.clone() for value in parameters]
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    with torch.no_grad():
        done = rbtools.fit(model, some(), "pgd", attack_steps=1, **SHORT)
    assert torch.equal(torch.rand(1), expected), "torch's random numbers are the user's"
    assert done.model is model and all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert [one.training for one in model.modules()] == modes
    assert [one.requires_grad for one in parameters] == [True] * 4 + [False] * 2
    assert all(one.grad is None for one in parameters)
    assert not any(one._forward_hooks for one in model.modules())
    changed = [not torch.equal(a, b) for a, b in zip(before, parameters, strict=True)]
    assert changed[0] and not any(changed[-2:]) and frozen is model[3]


def test_a_notebook_shows_a_line_for_each_epoch() -> None:
    many = {"loss": [0.5] * 12, "acc": [0.25] * 11 + [0.75]}
    table = Fit(torch.nn.Identity(), many, METHODS.load("erm")(), Recipe(), 0, 12)._repr_html_()
    assert table.count("<tr>") == 11 and "<td>12</td><td>0.5</td><td>0.75</td>" in table  # the last ten
    assert "<td>2</td>" not in table


def test_an_object_and_a_name_of_a_method_are_the_same() -> None:
    named = rbtools.fit(plain(), some(), "trades", **{"lambda": 2.0}, attack_steps=1, **SHORT)
    made = rbtools.fit(plain(), some(), TRADES(lambda_=2.0, attack_steps=1), **SHORT)
    assert named.history["loss"] == made.history["loss"] and named.method == made.method


def test_a_preset_of_a_paper_sets_what_is_not_given() -> None:
    given = {**SHORT, "batch_size": 10}
    done = rbtools.fit(plain(), some(), "pgd", preset="rice2020", attack_steps=1, **given)
    assert (done.recipe.schedule, done.recipe.batch_size, done.recipe.clean_pass) == ("piecewise", 10, True)
    assert (done.method.attack_steps, done.method.inner_mode) == (1, "train")


IMAGES, LABELS = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
BAD_DATA: list[tuple[Any, str]] = [
    ((IMAGES * 2 - 1, LABELS), r"values from -\d.* to .*\. Expected values in \[0, 1\]\. Undo the norm"),
    ((IMAGES * torch.nan, LABELS), "NaN or infinite values"),
    ((IMAGES, LABELS + 1), r"from 1 to 10\. Expected 0 to 9"),
    ((IMAGES, LABELS[:9]), r"shape \(9,\)\. Expected \(40,\)"),
    ((IMAGES, LABELS.float()), r"labels\.long\(\)"),
    ((IMAGES, LABELS * 0), "belong to one class"),
    ([(IMAGES[0], 1), (IMAGES[1, :, :5], 0), (IMAGES[0], 1)], "list do not all have the same size"),
]


def test_the_batch_size_of_a_loader_is_taken() -> None:
    def used(size: int, **options: Any) -> int:
        loader = DataLoader(TensorDataset(IMAGES, LABELS), batch_size=size)
        return rbtools.fit(plain(), loader, epochs=1, val=0.1, **options).recipe.batch_size

    assert (used(10), used(40), used(10, batch_size=20)) == (10, 36, 20)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"data": data}, message) for data, message in BAD_DATA),
        ({"model": nn.Sequential(plain(), nn.Softmax(1))}, "Remove the softmax"),
        ({"model": nn.Sequential(nn.Conv2d(1, 10, 3))}, r"returns \(2, 10, 6, 6\) for 2 images"),
        ({"epoch": 3}, "Did you mean 'epochs'"),
        ({"method": TRADES(), "attack_steps": 3}, "Unknown option of rbtools.fit 'attack_steps'"),
        ({"method": "trades", "eps": 8}, r"8/255 is eps=8 / 255"),
        ({"normalize": "cifar10"}, "has no option normalize: the normalisation belongs in the model"),
        ({"batch_size": 50}, "there are only 40 training images"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(given: dict[str, Any], message: str) -> None:
    given = {"model": plain(), "data": (IMAGES, LABELS), "method": "erm", **SHORT, **given}
    with pytest.raises(RbError, match=message):
        rbtools.fit(given.pop("model"), given.pop("data"), given.pop("method"), **given)


def test_images_between_the_levels_of_bytes_are_trained_on_as_they_are() -> None:
    images, labels = some()
    pixels = (images.float() / 255 * 0.999).clamp(0, 1)
    exact, rounded = (rbtools.fit(plain(), (x, labels), **SHORT) for x in (pixels, images))
    assert exact.history["loss"] != rounded.history["loss"]

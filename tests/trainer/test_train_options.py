"""Regularisers, filters, validation, presets and fine-tuning: what each does to a training."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rbtools import datasets, models
from rbtools.errors import RbError
from rbtools.execution.run import Run
from rbtools.models import checkpoint
from rbtools.rng.draws import Draws
from rbtools.store import Store
from rbtools.trainer import augment, init, optim, presets, recipe, regularize, train_model, validation
from rbtools.trainer.recipe import Recipe
from rbtools.training import METHODS
from tests.trainings import FAST, RECORD, Record, run_in, weights

TWICE = dataclasses.replace(FAST, epochs=2)
PGD = METHODS.build("pgd", attack_steps=1)


def go(how: Recipe, method: Any = None, record: Record = RECORD, **options: Any) -> Record:
    return train_model.train(record, method or METHODS.build("erm"), how, run_in(**options))


def changed(**changes: Any) -> Recipe:
    return dataclasses.replace(TWICE, **changes)


@pytest.mark.parametrize(
    "change",
    [
        *({"lr": 0.05}, {"batch_size": 700}, {"weight_decay": 0.0}, {"epochs": 1}, {"augment": ("flip",)}),
        *({"nesterov": True}, {"optimizer": "adam"}, {"schedule": "constant"}, {"label_smoothing": 0.1}),
        *({"ema": 0.5}, {"val": 0.1}, {"clean_pass": True}),
        *({"normalize": how} for how in ("none", [[0.5], [0.5]])),
        *({"regularize": (name,)} for name in ("cutout", "mixup", "awp", "l2", "wci")),
        {"regularize": ("cutout",), "cutout_length": 2},
        {"regularize": ("mixup",), "mixup_alpha": 0.2},
        *({"regularize": ("awp",), **more} for more in ({"awp_gamma": 0.05}, {"awp_warmup": 1})),
        {"regularize": ("wci",), "wci_weight": 0.1},
    ],
    ids=str,
)
def test_each_option_makes_another_training_and_stands_in_the_record(change: dict[str, Any]) -> None:
    plain, other = go(TWICE), go(changed(**change))
    assert other["checkpoint"] != plain["checkpoint"]
    assert other["train"]["config"] != plain["train"]["config"]
    for key, value in change.items():
        told = other["train"]["config"][key]
        assert told == (None if value == "none" else list(value) if isinstance(value, tuple) else value)


def test_cutout_blacks_out_one_square_inside_at_a_place_of_the_examples_own() -> None:
    images = torch.full((200, 3, 8, 8), 9, dtype=torch.uint8)
    found = augment.cutout(images, 3, Draws(0, "t", torch.arange(200)))
    black = found == 0
    assert bool((black.sum((2, 3)) == 9).all()) and torch.equal(black[:, 0], black[:, 2])
    tops = {int(mask.any(1).nonzero()[0]) for mask in black[:, 0]}
    assert tops == set(range(6))
    for mask in black[:, 0]:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        assert rows.tolist() == list(range(int(rows[0]), int(rows[0]) + 3)) and len(columns) == 3
    part = augment.cutout(images[:5], 3, Draws(0, "t", torch.arange(5)))
    assert torch.equal(part, found[:5])
    assert bool((augment.cutout(images, 8, Draws(0, "t", torch.arange(200))) == 0).all())
    record = go(changed(epochs=0, regularize=("cutout",)))
    assert record["train"]["config"]["cutout_length"] == 4  # 14 of 32 pixels, where nothing is said


def test_mixup_mixes_images_and_targets_alike() -> None:
    """One lambda a batch, and a permutation for the others: told by images of one pixel each."""
    ones = torch.eye(6)
    mixed, soft = regularize.mixup(ones.view(6, 1, 2, 3), ones, 1.4, seed=5)
    torch.testing.assert_close(mixed.flatten(1), soft)
    torch.testing.assert_close(soft.sum(0), torch.ones(6))
    torch.testing.assert_close(soft.sum(1), torch.ones(6))
    shares = {round(float(share), 5) for share in soft.diagonal()} - {1.0}  # else it is mixed with itself
    assert len(shares) == 1 and torch.equal(soft, regularize.mixup(ones.view(6, 1, 2, 3), ones, 1.4, 5)[1])
    pair = torch.tensor([[0.0], [1.0]]).view(2, 1, 1, 1)
    shares_of_seeds = [float(regularize.mixup(pair, ones[:2], 1.4, seed)[0].max()) for seed in range(40)]
    assert 0.5 < sum(shares_of_seeds) / 40 < 0.95


def test_smoothed_labels_are_those_of_the_formula() -> None:
    found = regularize.distribution(torch.tensor([2]), 4, 0.2)
    assert found[0].tolist() == pytest.approx([0.05, 0.05, 0.85, 0.05])


def test_the_ascent_of_awp_leaves_the_statistics_of_batchnorm_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).train()
    before, images = copy.deepcopy(net.state_dict()), torch.rand(5, 3)
    ascent = regularize.AWPAscent(0.02)
    with regularize.perturbed_weights(net, lambda: net(images)[:, 0].square().sum(), ascent):
        assert torch.equal(net[1].running_mean, before["1.running_mean"])
        assert not torch.equal(net[0].weight, before["0.weight"])


def test_awp_sets_in_after_its_warm_up_and_its_size_is_the_methods() -> None:
    one = changed(epochs=1)
    late = go(dataclasses.replace(one, regularize=("awp",), awp_warmup=1))
    assert late["checkpoint"] == go(one)["checkpoint"]
    trades = METHODS.build("trades", attack_steps=1)
    told = [go(changed(epochs=0, regularize=("awp",)), method)["train"]["config"] for method in (PGD, trades)]
    assert [config["awp_gamma"] for config in told] == [0.01, 0.005]


def test_l2_decays_weights_alone() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    weights_, others = regularize.decayed(net, 0.5)
    assert [value.ndim for value in weights_["params"]] == [4]
    assert [value.ndim for value in others["params"]] == [1, 1, 1]
    assert (weights_["weight_decay"], others["weight_decay"]) == (0.5, 0.0)
    config = go(changed(epochs=0, regularize=("l2",)))["train"]["config"]
    assert config["l2"] == 5e-3 and "weight_decay" not in config


def test_averaged_weights_follow_and_are_the_ones_that_are_kept() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    averaged = regularize.averaged(net, 0.75)
    start = copy.deepcopy(net)
    with torch.no_grad():
        net[0].weight += 1
        net[1].running_mean += 5
    averaged.update_parameters(net)
    assert torch.allclose(averaged.module[0].weight, start[0].weight + 0.25)
    assert torch.equal(averaged.module[1].running_mean, net[1].running_mean)
    assert go(changed(ema=0.0))["checkpoint"] == go(TWICE)["checkpoint"]  # the last step's weights


@pytest.mark.slow
def test_passes_are_counted_in_the_record() -> None:
    told = go(changed(epochs=1, regularize=("awp",)), METHODS.build("pgd", attack_steps=3))["train"]["passes"]
    assert (told["forward"], told["backward"]) == (5, 5)
    plain, other = go(changed(epochs=1)), go(changed(epochs=1, clean_pass=True))
    assert plain["train"]["passes"] == {"forward": 1.0, "backward": 1.0}
    assert other["train"]["passes"] == {"forward": 2.0, "backward": 1.0}
    name = "stem.1.num_batches_tracked"
    assert weights(other)[name] == 2 * weights(plain)[name]
    assert "passes" not in go(changed(epochs=0))["train"]


def test_what_is_held_out_is_not_trained_on_and_has_all_classes(batches: list[list[int]]) -> None:
    labels = datasets.load("digits", "train").labels
    record = go(changed(val=0.05))
    ids, held = validation.split(labels, changed(val=0.05))
    met = {number for batch in batches for number in batch}
    assert record["train"]["validation"]["n"] == 72 == round(0.05 * 1442)
    assert met == set(ids.tolist()) and not met & set(held.tolist()) and len(met) == 1442 - 72
    counts = torch.bincount(labels[held])
    assert counts.min() == 7 and counts.max() == 8


def test_a_number_of_training_images_is_taken_in_proportion_to_the_classes(batches: list[list[int]]) -> None:
    data = datasets.load("digits", "train")
    record = go(changed(train_n=100, val=0.1, batch_size=90))
    ids, held = validation.split(data.labels, changed(train_n=100, val=0.1))
    assert {number for batch in batches for number in batch} == set(ids.tolist()) and len(ids) == 90
    taken = set(datasets.subset(data.labels, 100, seed=0).tolist())
    assert {*ids.tolist(), *held.tolist()} == taken and len(held) == 10
    assert torch.bincount(data.labels[held]).tolist() == [1] * 10
    assert record["train"]["config"]["train_n"] == 100 and record["train"]["validation"]["n"] == 10
    of_training = validation.trained_on(record, run_in())
    assert of_training is not None and of_training.numbers == tuple(ids.tolist())
    assert "train_n" not in go(changed())["train"]["config"]
    with pytest.raises(RbError, match="only 90 training images"):
        go(changed(train_n=100, val=0.1, batch_size=91))
    with pytest.raises(RbError, match="--train-n is 1443, but there are only 1442 training images"):
        go(changed(train_n=1443))
    with pytest.raises(RbError, match="All 1 training images of digits belong to one class"):
        go(changed(train_n=1, batch_size=1))


def checked(monkeypatch: pytest.MonkeyPatch, *found: tuple[float, float]) -> list[dict[str, Tensor]]:
    """Checks on held-out images find these robust accuracies and losses; the weights at each check."""
    values, seen = iter(found), []

    def measure(self: Any, model: nn.Module, ids: Tensor) -> dict[str, float]:
        acc, loss = next(values)
        seen.append({name: value.clone() for name, value in model.state_dict().items()})
        return {"val_acc": 0.9, "val_robust_acc": acc, "val_robust_loss": loss}

    monkeypatch.setattr(validation.Checks, "measure", measure)
    return seen


def test_the_best_epoch_is_the_one_of_highest_robust_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = checked(monkeypatch, (0.3, 2.0), (0.5, 1.0), (0.5, 0.9), (0.4, 0.1))
    method = dataclasses.replace(PGD, attack_steps=2)  # with one step PGD measures some training images, too
    record = go(changed(epochs=4, val=0.1, select="best"), method)
    names = record["train"]["checkpoints"]
    assert names["best_epoch"] == 3  # of equal accuracies the lower loss
    assert record["checkpoint"] == names["best"] != names["last"] and names["selected"] == "best"
    for which, number in (("best", 2), ("last", 3)):
        for name, value in weights(record, which=which).items():
            assert name.startswith("normalize") or torch.equal(value, seen[number][f"network.{name}"])
    run = run_in()
    again = train_model.train(RECORD, method, changed(epochs=4, val=0.1), run)  # the other is there, too
    assert run.store.found == 1 and again["checkpoint"] == names["last"]


def test_accuracies_are_those_of_the_attack_on_what_is_held_out() -> None:
    how = changed(val=0.1)
    record = go(how, PGD)
    model, _, _ = checkpoint.load(Store("rb-store").object(record["checkpoint"]), classes=10, shape=(1, 8, 8))
    data = datasets.load("digits", "train")
    _, held = validation.split(data.labels, how)
    images, labels = data.images[held].float() / 255, data.labels[held]
    with torch.no_grad():
        acc = float((model(images).argmax(1) == labels).float().mean())
    attack = METHODS.build("pgd", attack_steps=10)
    perturbed = attack.perturb(model, images, labels, Draws(0, "validation", held))
    with torch.no_grad():
        robust = float((model(perturbed).argmax(1) == labels).float().mean())
    history = record["train"]["history"]
    assert history["val_acc"][-1] == pytest.approx(acc, abs=1e-5)
    assert history["val_robust_acc"][-1] == pytest.approx(robust, abs=1e-5)
    told = record["train"]["validation"]
    assert told == {"n": 144, "attack": "pgd", "eps": 8 / 255, "step_size": 2 / 255, "steps": 10}


def test_patience_stops_and_says_after_which_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    checked(monkeypatch, *((acc, 1.0) for acc in (0.3, 0.5, 0.4, 0.5, 0.5, 0.5, 0.5)))
    told = go(changed(epochs=9, val=0.1, patience=3))["train"]
    assert told["stopped_after"] == 5 and told["checkpoints"]["best_epoch"] == 2 and told["epochs"] == 9
    assert len(told["history"]["loss"]) == 5


def test_what_cannot_work_is_refused(photos: Path) -> None:
    other = {**go(changed(epochs=0)), "arch": {**RECORD["arch"], "channels": 3}}
    for record, change, message in (
        (RECORD, {"regularize": ("cutout",), "cutout_length": 9}, "--cutout-length is 9, .* 8 pixels"),
        (other, {"init": "checkpoint"}, "does not fit"),
        (RECORD, {"init": "checkpoint"}, "starts from the record's checkpoint, but .* none"),
        (RECORD, {"init": "timm"}, "starts from timm's published weights.*not from the space"),
    ):
        with pytest.raises(RbError, match=message):
            go(changed(**change), record=record)
    for field, value in (("init_file", "x.pth"), ("resample", "prbench")):
        assert changed(**{field: value}).without_effect()[field] == "no --init timm"
        assert field not in changed(**{field: value}).config()
    tiny = go(changed(batch_size=20, val=0.02), dataset=f"imagefolder:{photos}")["train"]
    assert "best" not in tiny["checkpoints"] and "validation" not in tiny  # less than an image


ABOUT = datasets.Description(name="cifar10", shape=(3, 32, 32), classes=10, class_names=[], sizes={})


def preset(name: str, method: str | None = None, about: Any = ABOUT, **given: Any) -> tuple[Any, Recipe]:
    chosen = presets.named(name)
    cls = METHODS.load(method or chosen.method)
    built = METHODS.build(method or chosen.method, **presets.params(chosen, cls, {}))
    how = Recipe(**{**chosen.recipe, **given}, preset=name, given=frozenset(given))
    return presets.on_data(built, how, about)


def two_classes(count: int, folder: Path) -> tuple[Run, Any, Any]:
    """A run on that many images of 4x4 pixels, the images and their labels."""
    images = np.random.default_rng(0).integers(0, 256, (count, 4, 4, 1), np.uint8)
    labels = np.arange(count) % 2
    np.savez(folder / "two.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    return run_in(prepare=False, dataset=f"npz:{folder / 'two.npz'}"), images, labels


@pytest.mark.parametrize("norm", ["sphere", "linf"])
def test_algorithm_1_is_a_step_of_plain_descent_for_each_sample(
    norm: str, tmp_path: Path, batches: list[list[int]]
) -> None:
    method, how = preset("nasrobbench201-algorithm1")
    assert (how.epochs, how.batch_size, how.momentum, how.weight_decay) == (1, 1, 0, 0)
    assert (method.norm, how.output, how.lr_rule) == ("sphere", "random", "theorem1")
    method = dataclasses.replace(method, beta=0.3, attack_steps=2, eps=32 / 255, norm=norm)
    run, images, labels = two_classes(13, tmp_path)
    arch = {"space": "fcnn", "str": "tanh/swish+skip", "width": 5, "inputs": "unit"}
    trained = train_model.train({"schema": 1, "arch": arch}, method, how, run)
    order = [number for (number,) in batches]  # each alone, the last one too
    assert sorted(order) == list(range(13))
    assert trained["train"]["output"]["of"] == 13
    order = order[: trained["train"]["output"]["step"]]  # the weights before that step
    (lr,) = trained["train"]["history"]["lr"]

    with torch.random.fork_rng():
        torch.manual_seed(init.mixed_seed(0, "init"))
        model = models.build(arch, classes=2, shape=(1, 4, 4))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255

    def gradients(image: torch.Tensor, sign: int) -> Any:
        loss = torch.log1p(torch.exp(-sign * model(image).sum()))
        return torch.autograd.grad(loss, list(model.parameters()))

    for one in order:
        ids, sign = torch.tensor([one]), 2 * int(labels[one]) - 1
        draws = Draws(0, "train", ids).child("method")
        attacked = method.inner_attack(model, pixels[ids], torch.tensor([int(labels[one])]), draws)
        both = gradients(pixels[ids], sign), gradients(attacked, sign)
        with torch.no_grad():
            for weight, clean, adversarial in zip(model.parameters(), *both, strict=True):
                weight -= lr * (0.7 * clean + 0.3 * adversarial)
    made = checkpoint.read(Store("rb-store").object(trained["checkpoint"])).state
    for name, value in model.state_dict().items():
        torch.testing.assert_close(made[name], value)


def test_the_step_size_of_theorem_1_is_that_of_the_kernels_written_out() -> None:
    method, _ = preset("nasrobbench201-algorithm1")
    method = dataclasses.replace(method, beta=0.3, attack_steps=2)
    arch = {"space": "fcnn", "name": "two", "str": "tanh/swish+skip", "width": 5, "inputs": "unit"}
    torch.manual_seed(0)
    model = models.build(arch, classes=2, shape=(1, 4, 4)).eval()
    images, labels = torch.rand(6, 1, 4, 4), torch.arange(6) % 2
    draws = Draws(3, "theorem1", torch.arange(6))
    once = method.perturb(model, images, labels, draws)
    twice = method.perturb(model, once, labels, draws.child("twice"))

    def rows(points: torch.Tensor) -> torch.Tensor:
        gradients = [torch.autograd.grad(model(x[None]).sum(), list(model.parameters())) for x in points]
        return torch.stack([torch.cat([part.flatten() for part in one]).double() for one in gradients])

    energies = []
    y = (2 * labels - 1).double()
    for a, b in ((rows(images), rows(once)), (rows(once), rows(twice))):
        joint = 0.49 * a @ a.T + 0.21 * (a @ b.T + b @ a.T) + 0.09 * b @ b.T
        energies.append(float(y @ torch.linalg.solve(joint, y)))
    found = optim.step_size(arch, method, model, images, labels, 3)
    assert found == pytest.approx((min(energies) / 6) ** 0.5 / 5, rel=1e-3)
    # Corollary 1 has no root, and divides by that of the 16 pixels times the 25 of the filter too.
    filters = {**arch, "space": "rescnn", "str": "tanh3/swish5+skip"}
    other = optim.step_size(filters, method, model, images, labels, 3)
    assert other == pytest.approx(min(energies) / ((16 * 25) ** 0.5 * 5 * 6**0.5), rel=1e-3)
    with pytest.raises(RbError, match="--lr-rule theorem1 needs the width of a network from the space fcnn"):
        optim.step_size({"space": "zoo", "name": "vgg11"}, method, model, images, labels, 3)
    for parameter in model.parameters():
        parameter.data.zero_()
    with pytest.raises(RbError, match="singular"):
        optim.step_size(arch, method, model, images, labels, 3)


def test_what_a_drawn_output_does_not_go_with() -> None:
    for wrong in ({"ema": 0.9}, {"select": "best", "val": 0.1}, {"patience": 2, "val": 0.1}):
        with pytest.raises(RbError, match="--output random keeps the weights before a random step"):
            recipe.check(Recipe(output="random", **wrong))


def test_options_of_later_versions_are_not_in_the_keys_of_trainings_without_them() -> None:
    assert not {"output", "lr_rule"} & Recipe().config().keys()


def test_a_drawn_output_is_the_weights_before_that_step(tmp_path: Path) -> None:
    run, _, _ = two_classes(12, tmp_path)
    arch = {"space": "fcnn", "str": "tanh/swish+skip", "width": 5}
    how = Recipe(epochs=3, batch_size=4, output="random", augment=(), schedule="constant")
    outputs: set[int] = set()
    # Of nine steps three are the first of an epoch: some seed below 50 draws one, or chance is not at work.
    for seed in range(50):
        if len(outputs) > 1 and any(step % 3 == 0 for step in outputs):
            break
        run = run.changed(seed=seed)
        record = train_model.train({"schema": 1, "arch": arch}, METHODS.build("erm"), how, run)
        step = record["train"]["output"]["step"]
        outputs.add(step)
        epochs, more = divmod(step, 3)
        if not more:  # the weights at the end of so many epochs
            shorter = dataclasses.replace(how, epochs=epochs, output="last")
            same = train_model.train({"schema": 1, "arch": arch}, METHODS.build("erm"), shorter, run)
            assert record["checkpoint"] == same["checkpoint"]
    assert len(outputs) > 1 and any(step % 3 == 0 for step in outputs)


def test_prbench_changes_with_the_data_and_what_is_given_stays() -> None:
    mnist = dataclasses.replace(ABOUT, name="mnist", augment=())
    svhn = dataclasses.replace(ABOUT, name="svhn", augment=("crop",))
    method, _ = preset("prbench", "alp", mnist)
    assert (method.eps, method.step_size, method.lambda_) == (0.3, 0.1, 0.01)
    method, _ = preset("prbench", "clp", svhn)
    assert (method.step_size, method.lambda_) == (1.25 / 255, 0.3)
    assert preset("prbench", "trades", svhn)[0].lambda_ == 6
    assert preset("prbench", "alp")[0].lambda_ == 1
    imagenet = dataclasses.replace(ABOUT, name="imagenet50")
    assert [preset("prbench", None, imagenet, **given)[1].epochs for given in ({}, {"epochs": 3})] == [200, 3]
    assert preset("rice2020", None, svhn)[1].augment == ("crop-reflect",)


def test_prbench_code_is_the_recipe_of_its_code() -> None:
    _, how = preset("prbench-code")
    assert (how.epochs, how.batch_size, how.lr, how.weight_decay) == (100, 256, 0.1, 5e-4)
    assert (how.schedule, how.milestones, how.decay, how.normalize) == ("step", (75, 90), 0.1, "none")
    assert (how.momentum, how.nesterov, how.val) == (0.9, False, 0)
    for name in ("pgd", "alp", "clp", "at-pr", "trades", "mart", "kl-pgd"):
        mode = "eval" if name in ("trades", "mart", "kl-pgd") else "train"
        assert preset("prbench-code", name)[0].inner_mode == mode
    for name, weight in (("alp", 0.01), ("clp", 0.3)):
        method = preset("prbench-code", name)[0]
        assert (method.lambda_, method.pair, method.distance) == (weight, "logits", "l2")
    method = preset("prbench-code", "cvar")[0]
    assert (method.tail, method.tail_step, method.samples) == ("advbench", "batch", 10)
    assert preset("prbench-code", "corruption")[0].scale == "unit"
    # Beside it the text.
    method = preset("prbench", "cvar")[0]
    assert (method.tail, method.tail_step, method.samples) == ("prl", "image", 20)
    assert preset("prbench", "corruption")[0].scale == "eps"
    assert preset("prbench", "alp")[0].distance == "squared"


def test_prbench_code_augments_as_its_code_does_on_each_data_set() -> None:
    def of(name: str, method: str = "pgd", **given: Any) -> tuple[Any, Recipe]:
        augment = () if name == "mnist" else ("crop",) if name == "svhn" else ("crop", "flip")
        about = dataclasses.replace(ABOUT, name=name, augment=augment)
        return preset("prbench-code", method, about, **given)

    cifar = dict.fromkeys(("cifar10", "cifar100"), ("crop-reflect", "flip"))
    for name, wanted in {**cifar, "tinyimagenet": ("crop", "flip"), "svhn": (), "mnist": ()}.items():
        assert of(name)[1].augment == wanted
    assert of("svhn", augment=("crop",))[1].augment == ("crop",)
    assert of("mnist")[0].eps == 0.3 and of("svhn")[0].step_size == 1.25 / 255
    for name, step in (("cifar10", 2 / 255), ("svhn", 1.25 / 255), ("mnist", 0.1)):
        method = of(name, "at-pr")[0]
        around = (method.step_min, method.plain_step, method.step_max)
        assert around == pytest.approx((step - 0.003, step, step + 0.003))
        assert of(name, "alp")[0].lambda_ == 0.01


def test_a_presets_step_belongs_to_its_radius() -> None:
    chosen, cls = presets.named("prbench"), METHODS.load("pgd")
    for eps, step in (("8", 2 / 255), ("32", None), (76.5 / 255, None)):
        assert presets.params(chosen, cls, {"eps": eps}).get("step_size") == step
    svhn = dataclasses.replace(ABOUT, name="svhn")
    how = Recipe(**chosen.recipe, preset="prbench", given=frozenset({"eps"}))
    for eps, step in ((8, 1.25), (32, 8)):
        built = METHODS.build("pgd", **presets.params(chosen, cls, {"eps": eps / 255}))
        assert presets.on_data(built, how, svhn)[0].step_size * 255 == pytest.approx(step)


def test_the_piecewise_schedule_falls_one_batch_before_the_epoch() -> None:
    net = nn.Linear(1, 1)
    optimizer, rates = torch.optim.SGD(net.parameters(), lr=0.1), []
    rates_of = optim.schedule(optimizer, Recipe(schedule="piecewise", milestones=(1, 2), epochs=3), 4)
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        rates_of.step()
    assert rates == pytest.approx([0.1] * 3 + [0.01] * 4 + [0.001] * 5)


def test_fine_tuning_goes_on_from_the_records_checkpoint() -> None:
    first = go(changed(normalize=[[0.4], [0.5]]))
    none = go(changed(epochs=0, init="checkpoint"), record=first)
    assert weights(none).keys() == weights(first).keys()
    assert all(torch.equal(value, weights(first)[name]) for name, value in weights(none).items())
    assert none["train"]["init"] == {"checkpoint": first["checkpoint"]}
    assert none["train"]["config"]["normalize"] == [[0.4], [0.5]]  # that of the file
    more = go(changed(epochs=1, init="checkpoint", lr=0.01), record=first)
    assert more["train"]["history"]["loss"][0] < first["train"]["history"]["loss"][0]
    fresh = go(changed(epochs=1, lr=0.01), record=first)
    assert fresh["checkpoint"] != more["checkpoint"] and "init" not in fresh["train"]


def test_deterministic_algorithms_are_asked_for_and_given_back() -> None:
    asked: list[bool] = []

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Asking(METHODS.load("erm")):
        def __call__(self, *args: Any) -> Any:
            asked.append(torch.are_deterministic_algorithms_enabled())
            return super().__call__(*args)

    record = go(changed(deterministic=True), Asking())
    assert all(asked) and not torch.are_deterministic_algorithms_enabled()
    assert record["train"]["config"]["deterministic"] is True

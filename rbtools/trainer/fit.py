"""Training of a module in memory: `rbtools.fit`."""

from __future__ import annotations

import contextlib
import dataclasses
import html
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rbtools import check_input, datasets, registry
from rbtools.datasets import given, preprocessing
from rbtools.errors import RbError, as_arguments, in_words_of_python, shown, unknown
from rbtools.execution import device as devices
from rbtools.execution import precision as precisions
from rbtools.execution.report import discard, progress_of
from rbtools.execution.run import Run
from rbtools.lazy import nn, torch
from rbtools.trainer import begin, distributed, loop, presets
from rbtools.trainer.augment import pixels
from rbtools.trainer.recipe import VALIDATED, Recipe, check, check_method, held_out, used
from rbtools.trainer.state import weights_of
from rbtools.trainer.train_model import TrainingTask, settled
from rbtools.training import METHODS
from rbtools.training.base import mode

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.datasets.streaming import Streamed

# Recipe fields that do not apply to a module in memory, and the reasons.
_OF_RECORDS = {
    **dict.fromkeys(("init", "init_file", "resample"), "training starts from the model's own weights"),
    "normalize": "the normalisation belongs in the model, as its first layer",
    "keep": "it stores no weights",
    "lr_rule": "the rule needs a network from a search space; set lr instead",
    **dict.fromkeys(
        ("track", "every", "track_n", "stop_on", "stop_patience"),
        "only rb-train measures during training",
    ),
}


@dataclass(frozen=True, eq=False)
class Fit:
    """A finished training run. `model` is the given module. `history` maps each quantity to a list with an
    entry per epoch: "loss", "acc", "robust_acc" (of the training batches), "val_acc", "val_robust_acc" ...,
    "lr", "seconds". `best_epoch` is counted from 1, and is None without validation. `passes` is the number
    of passes per image and step. `notices` are messages for the user, such as a warning that the training
    ended at the accuracy of guessing."""

    model: nn.Module = field(repr=False)
    history: dict[str, list[float]]
    method: Any
    recipe: Recipe
    seed: int
    epochs: int
    best_epoch: int | None = None
    passes: dict[str, float] | None = None
    notices: tuple[str, ...] = ()

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items() if name != "lr"}
        numbers = [f"{name} {value:.4g}" for name, value in last.items()]
        best = [] if self.best_epoch is None else [f"best epoch {self.best_epoch}"]
        done = f"{self.epochs} epoch{'s' * (self.epochs != 1)}, seed {self.seed}"
        line = f"Fit({self.method.name} of {type(self.model).__name__}: {', '.join([done, *numbers, *best])})"
        return "\n".join([line, *self.notices])

    def _repr_html_(self) -> str:
        lengths = [len(values) for values in self.history.values()]
        if not lengths or min(lengths) != max(lengths):
            return f"<pre>{html.escape(repr(self))}</pre>"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in ["epoch", *self.history])
        rows = enumerate(zip(*self.history.values(), strict=True), start=1)
        lines = [[str(epoch), *(f"{value:.4g}" for value in values)] for epoch, values in rows]
        body = "".join("<tr><td>" + "</td><td>".join(line) + "</td></tr>" for line in lines[-10:])
        return f"<p>{html.escape(repr(self))}</p><table><tr>{head}</tr>{body}</table>"


@check_input.outside_inference()
@in_words_of_python()
def fit(
    model: nn.Module,
    data: Any,
    method: Any = "erm",
    *,
    epochs: int | None = None,
    seed: int = 0,
    device: str | torch.device = "auto",
    precision: str = "auto",
    val: float | None = None,
    progress: bool | Callable[[str], None] | None = None,
    **options: Any,
) -> Fit:
    """Train a module in memory, in place, and return it with its history. Nothing is written to files.

    `model` maps images float32 (N, C, H, W) in [0, 1] to logits (N, K), and includes its normalisation.
    `data` is a pair (images, labels) of tensors or arrays, a torch Dataset or DataLoader of such pairs, or
    the name of a data set such as "digits". Images are uint8, or float in [0, 1], and labels are class
    numbers. A Dataset or DataLoader is read once. Of a named data set, the train split is used; options such
    as resize=256, crop=224 scale and crop it (`rbtools.datasets.source`). `method` is a name ("trades") or an
    object of `rbtools.training`. `options` are other fields of the recipe (`batch_size`, `lr`, `schedule`,
    `regularize`, `ema`, `select`, `preset` ...), and parameters of a method given by name (`eps=8/255`, in
    pixel units of [0, 1]). The defaults are those of rb-train (without `val`, 2 % of images are held out),
    except that a DataLoader determines the batch size. `device` "auto" is the model's device if it is a GPU,
    otherwise the first GPU, or the CPU if there is no GPU. `progress` is called with a line of text after
    each step; True shows the line with tqdm.

    With the same initial weights, images, recipe, seed, and number of threads, the resulting weights are the
    same as with rb-train, bit for bit. Afterwards the model is on its original device. The mode of each
    module, `requires_grad` and torch's random state are restored, and gradients are None. After an error or
    an interruption, the model keeps the weights that it has at that moment.

    Raises RbError if data, model or options are invalid or do not match, and if the training diverges.
    """
    if distributed.count() > 1:
        raise RbError(
            f"torchrun started {distributed.count()} processes, but rbtools.fit trains in one. Start Python"
            " without torchrun, or use torchrun with rb-train."
        )
    options_given = {name: value for name, value in (("epochs", epochs), ("val", val)) if value is not None}
    scaling = {name: options.pop(name) for name in preprocessing.OPTIONS if name in options}
    built, recipe = _settings(method, {**options, **options_given})
    split = read_data(data, **scaling)
    built, recipe = presets.on_data(built, recipe, split.about)
    if "batch_size" not in options and recipe.preset is None:
        recipe = _with_batches_of(data, recipe, len(split.labels))
    check(recipe, len(split.labels))
    check_method(recipe, built)
    notices: list[str] = []
    run = Run.of("rbtools.fit", device=_device(model, device), seed=seed, precision=precision)
    with progress_of(progress) as line, _borrowed(model, split.about.shape, devices.choose(run)) as chosen:
        run = run.changed(notify=notices.append, progress=line or discard)
        if check_input.gets_copies(model):
            notices.append(f"{type(model).__name__}: {check_input.COPIES}.")
        recipe, done = _trained(model, split, built, recipe, run, chosen)
    unused = (f"{name} has no effect: {why}." for name, why in built.unused.items() if name in options)
    best, passes = done.get("best_epoch"), done.get("passes")
    told = tuple(as_arguments(text) for text in (*unused, *notices))
    return Fit(model, done["history"], built, recipe, seed, done["epochs"], best, passes, told)


def _trained(
    model: nn.Module, split: FitData, method: Any, recipe: Recipe, run: Run, device: torch.device
) -> tuple[Recipe, dict[str, Any]]:
    """Train the model. Returns the recipe with the defaults that depend on the images, and the result."""
    about = dataclasses.replace(split.about, classes=check_model(model, split, device))
    data, recipe = settled(dataclasses.replace(split, about=about), method, recipe)
    record = {"arch": {"name": type(model).__name__}}
    task = TrainingTask(record, {}, data, method, recipe, precisions.of_training(run, about.shape))
    weights: list[dict[str, Tensor]] = []

    def keep(network: nn.Module) -> str:
        weights.append(weights_of(network))
        return str(len(weights) - 1)

    setup, state = begin.begin(task, model, run.settings, run.report, device)
    try:
        loop.train(setup, state)
        done = loop.result(setup, state, keep)
    finally:
        setup.networks.passes.forget()
        if setup.networks.half:
            model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.load_state_dict(weights[int(recipe.selected(done))])
    return recipe, {**done, "epochs": state.epoch}


def _settings(method: Any, options: dict[str, Any]) -> tuple[Any, Recipe]:
    """The method and the recipe that these options describe. Raises RbError for an invalid option."""
    cls = METHODS.load(method) if isinstance(method, str) else type(method)
    if not dataclasses.is_dataclass(cls) or not hasattr(cls, "inner_attack"):
        raise RbError(
            f"The method is a {cls.__name__}. Expected a name such as 'trades', or an object of"
            " rbtools.training such as TRADES()."
        )
    fields = {one.name for one in registry.options(Recipe)} | {"preset"}
    parameters = set()
    if isinstance(method, str):
        own_fields = registry.options(cls)
        parameters = {name for one in own_fields for name in (one.name, registry.public_name(one))}
    for name in options:
        if name in _OF_RECORDS:
            raise RbError(f"rbtools.fit has no option {name}: {_OF_RECORDS[name]}.")
        if name not in fields | parameters:
            raise unknown("option of rbtools.fit", name, sorted(fields - _OF_RECORDS.keys() | parameters))
    own = {name: value for name, value in options.items() if name not in fields}
    chosen = {name: value for name, value in options.items() if name in fields}
    recipe = presets.recipe({"val": VALIDATED, **chosen}, own, chosen)
    for name, why in recipe.without_effect().items():
        if name in chosen:
            raise RbError(f"{name} has no effect with {why}. Leave out one of them, or change the other.")
    if isinstance(method, str):
        if recipe.preset is not None:
            own = presets.params(presets.named(recipe.preset), cls, own)
        method = METHODS.build(method, **own)
    return method, recipe


def _device(model: nn.Module, device: str | torch.device) -> str:
    """The name of the device for training. Raises RbError if the model cannot be trained on one device."""
    if not isinstance(model, nn.Module):
        raise RbError(f"The model is a {type(model).__name__}. Expected a torch.nn.Module.")
    weights = list(model.parameters())
    if not any(weight.requires_grad for weight in weights):
        raise RbError("The model has no trainable parameters. Expected some with requires_grad=True.")
    places = {str(weight.device) for weight in weights}
    if len(places) > 1:
        raise RbError(
            f"The model is on several devices: {', '.join(sorted(places))}. Move it to one: model.to('cpu')."
        )
    place = places.pop()
    return place if str(device) == "auto" and place != "cpu" else str(device)


@contextlib.contextmanager
def _borrowed(model: nn.Module, shape: tuple[int, int, int], device: torch.device) -> Iterator[torch.device]:
    """Inside the block, the model is on the device, and receives copies of the images if it changes its input
    (C, H, W) in place. Afterwards its device, its modes and the random state are restored."""
    home = next(model.parameters()).device
    cards = [device] if device.type == "cuda" else []
    random = torch.random.fork_rng(devices=cards)
    copies = None
    with random, torch.enable_grad(), mode(model, train=True), devices.float32(device):
        try:
            model.to(device)
            copies = check_input.keep_images(model, shape)
            yield device
        finally:
            if copies is not None:
                copies.remove()
            model.zero_grad(set_to_none=True)
            model.to(home)


@dataclass(frozen=True, eq=False)
class FitData:
    """A training split in memory: images uint8, or float32 in [0, 1], (N, C, H, W); labels int64 (N,)."""

    name: str
    about: datasets.Description
    images: Tensor | Streamed
    labels: Tensor

    def load(self) -> FitData:
        return self


def _with_batches_of(data: Any, recipe: Recipe, images: int) -> Recipe:
    """The recipe with the batch size of a DataLoader, if `data` is one and its batch size is known."""
    if not isinstance(data, torch.utils.data.DataLoader):
        return recipe
    size = data.batch_size or getattr(data.batch_sampler, "batch_size", None)
    if size is None:
        return recipe
    return dataclasses.replace(
        recipe, batch_size=max(min(size, used(recipe, images) - held_out(recipe, images)), 1)
    )


def read_data(data: Any, **options: Any) -> FitData:
    """Return the training split of `data`: the name of a data set, a pair (images, labels) of tensors or
    arrays, or a torch Dataset or DataLoader of such pairs, which is read once. `options` scale and crop the
    images of a named data set. Raises RbError for anything else."""
    scaled = preprocessing.of_arguments(data, options)
    if isinstance(data, str):
        source = datasets.source(data, preprocessing=scaled)
        about, split = source.describe(), source.load("train")
        return FitData(data, about, split.images, split.labels)
    images, labels = given.pair(data)
    images = images if images.dtype == torch.uint8 else images.float()
    channels, height, width = images.shape[1:]
    classes = int(labels.max()) + 1
    about = datasets.Description(
        name="images in memory",
        shape=(channels, height, width),
        classes=classes,
        class_names=[str(number) for number in range(classes)],
        sizes={"train": len(images)},
        augment=("crop", "flip") if channels == 3 else (),  # the default of .npz files
    )
    return FitData(about.name, about, images.cpu(), labels.cpu())


def check_model(model: nn.Module, data: FitData, device: torch.device) -> int:
    """Return the number of outputs of a model on its device. Raises RbError if the outputs are not logits."""
    images = pixels(data.images[:2].to(device))
    try:
        with torch.no_grad(), mode(model, train=False):
            logits = model(images)
    except Exception as wrong:  # a module of the user's may raise anything
        raise RbError(
            f"The model raises {type(wrong).__name__}: {shown(str(wrong).strip(), 300)}. It receives float32"
            f" images {tuple(images.shape)} on {device.type} and must return logits."
        ) from wrong
    check_input.check_logits(logits, len(images))
    classes = int(logits.shape[1])
    check_input.check_labels(data.labels, len(data.labels), classes)
    return classes

"""Randomised models: the test for random numbers, and means over random passes instead of a single pass.

A model that returns the same logits for a few images in different batches uses no random numbers. Other
models are run several times on the same images, and on some of the images in another batch. A model whose
logits differ between passes of the same batch is randomised. A model whose logits differ only in another
batch depends on the batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from rbtools.errors import RbError, optional
from rbtools.evaluation.base import default_chunk_size
from rbtools.evaluation.spec import Evaluation
from rbtools.execution.device import out_of_memory
from rbtools.lazy import nn, torch

if TYPE_CHECKING:
    from torch import Tensor

LOOKED = 4  # version of the checks of a model, for keys in the store
IMAGES = 8  # the number of images on which a model is tested for random numbers
PIXELS = 64 * 32 * 32  # the pixels of a batch on which a model is tested for dependence on the batch
SAME = 1e-3  # outputs that differ by less than this share of the logits' range are equal
_FEW = 2  # images of the other batch
_PASSES = 32  # further passes of a model that uses random numbers: a single number may repeat by chance
_UNSEEN = 8  # further passes of a few images: any model may have its own generator
_CHECKS = 6  # passes that check that the random numbers belong to the examples
_WORDS = {"dropout": "dropout is on in its forward pass", "noise": "its forward pass draws random numbers"}


class Randomness(NamedTuple):
    """The randomness of a model.

    `kind` is "none", "dropout" or "noise". `numbers` is "example" if the random numbers can belong to the
    examples in a batch of any size, "one by one" if this is possible only when every image goes through the
    model separately, and "uncontrolled" otherwise, for example if the model has its own generator. `batch` is
    true if the logits of an image depend on the other images of the batch, or on its position in the batch.
    `changes` is true if a pass changes the model's parameters or buffers.
    """

    kind: str = "none"
    numbers: str = "example"
    batch: bool = False
    changes: bool = False

    @property
    def randomised(self) -> bool:
        """Whether a second pass returns different logits for the same image."""
        return self.kind != "none"

    def sentence(self, draws: int, eot: int | None) -> str:
        """A sentence, without its subject, on how a randomised model is evaluated. `eot` is the number of
        random passes over which an attack averages its gradients."""
        of_attacks = {
            None: "",
            1: ", and attacks follow the gradient of a single draw (--eot 1), which makes them weak",
        }
        means = of_attacks.get(eot, f", and attacks average over {eot} draws (--eot)")
        single = {
            "example": "",
            "one by one": " Some of its random numbers belong to the batch, so images are passed one by one.",
            "uncontrolled": " It uses its own random generator, so results are not reproducible.",
        }[self.numbers]
        verdicts = f"Results are means over {draws} draws (--draws)"
        verdicts = verdicts if draws > 1 else "Each result is from a single draw (--draws 1)"
        return f"is randomised: {_WORDS[self.kind]}. {verdicts}{means}.{single}"

    def checked(self) -> Randomness:
        """Returns this object. Raises RbError if the result for an image depends on other images."""
        if self.batch:
            raise RbError(
                "The logits of an image depend on the other images in the batch, because the model is in"
                " train mode, computes batch statistics, or adds noise from a fixed seed. Call model.eval()"
                " before saving it, check module.training in its code, or draw the noise from torch's own"
                " generator without a seed."
            )
        if self.changes:
            raise RbError(
                "The model changes its parameters or buffers while it is tested, so a result depends on the"
                " previous images. Call model.eval() before saving it."
            )
        return self


# --- the test of a model --------------------------------------------------------------------------


def batch_of_look(images: Any, most: int) -> int:
    """The number of images (N, C, H, W), at most `most`, with which a model is tested for randomness."""
    small = max(2 * IMAGES, PIXELS // (images.shape[2] * images.shape[3]))
    return int(min(most, small, default_chunk_size(torch.device("cpu"), images.shape[1:])))


def look(model: nn.Module, images: Tensor, logits: Tensor | None = None) -> Randomness:
    """The randomness of a model, determined by passes of two or more images (N, C, H, W).

    Their `logits` (N, K) may be known from a pass of all images. Errors in a pass and logits that are not
    finite count as "nothing is random", because the evaluation reports them.
    """
    with optional():
        if _repeats(model, images, logits):
            return Randomness()
    try:
        return _Passes(model, images[:IMAGES]).randomness(images)
    except Exception as wrong:  # the network's own code
        if isinstance(wrong, RbError) or (isinstance(wrong, RuntimeError) and out_of_memory(wrong)):
            raise
    return Randomness()


def logits_of(model: nn.Module, images: Tensor, size: int) -> Tensor | None:
    """The logits (N, K) for the images (N, C, H, W), `size` at a time. Returns None if the passes fail,
    return something else, or change the model, whose state is then restored."""
    logits = None
    with optional(), _restored(model) as changed, torch.no_grad():
        logits = torch.cat([model(part).float() for part in images.split(size)])
    usable = logits is not None and not changed and logits.dim() == 2 and bool(logits.isfinite().all())
    return logits if usable else None


@contextlib.contextmanager
def _restored(model: nn.Module) -> Iterator[list[str]]:
    """Restore the state of a model if passes change it, and list the names of what they changed."""
    state, changed = {name: one.clone() for name, one in model.state_dict().items()}, list[str]()
    try:
        yield changed
    finally:
        changed += [name for name, one in model.state_dict().items() if not torch.equal(one, state[name])]
        if changed:
            model.load_state_dict(state)


def _repeats(model: nn.Module, images: Tensor, logits: Tensor | None) -> bool:
    """Whether a few images have the same logits in other batches, while torch's random numbers are not used
    and the model does not change."""
    from rbtools.rng.foreign import states

    numbers = states(images.device)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).to(images.device)
    order = order.repeat(-(-4 * IMAGES // len(order)))[: 4 * IMAGES]
    with _restored(model) as changed, torch.no_grad():
        first = model(images).float() if logits is None else logits
        parts = [order[: 2 * IMAGES], *order[2 * IMAGES :].split(_FEW), order[:_FEW]]
        others = [model(images[part]).float() - first[part] for part in parts]
    near = SAME * float((first.amax(1) - first.amin(1)).median()) + 1e-6
    same = all(bool(one.abs().max() <= near) for one in others)  # false for NaN
    return same and not changed and numbers == states(images.device)


class _Passes:
    """Passes of a model on some images. `first` are the logits (N, K) of the first pass, and `changes` is
    true if a pass changes the model."""

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        self.model, self.images = model, images
        self.state = {name: value.clone() for name, value in model.state_dict().items()}
        self.changes = False
        self.first = self.logits(images)
        state = model.state_dict()
        self.changes = any(not torch.equal(value, self.state[name]) for name, value in state.items())

    def randomness(self, batch: Tensor) -> Randomness:
        """The randomness of the model. `batch` contains more images than the first pass."""
        if self.first.dim() != 2 or not bool(self.first.isfinite().all()):
            return Randomness()
        if not self.differ_by_chance():
            alike = not self.differ(self.few, self.first[:_FEW])
            with optional():
                alike = alike and not self.differ_by_place(batch)
            return Randomness(batch=not alike, changes=self.changes)
        kind, numbers = self.numbers()
        norms = (one for one in self.model.modules() if isinstance(one, nn.modules.batchnorm._BatchNorm))
        return Randomness(kind, numbers, any(norm.training for norm in norms), self.changes)

    def logits(self, images: Tensor, model: nn.Module | None = None) -> Tensor:
        """The logits of a pass, optionally of a model that contains the tested one. Every pass except the
        first starts from the state of the checkpoint, which is restored afterwards."""
        if self.changes:
            self.model.load_state_dict(self.state)
        with torch.no_grad():
            logits = (self.model if model is None else model)(images)
        if self.changes:
            self.model.load_state_dict(self.state)
        return logits.float() if isinstance(logits, torch.Tensor) else torch.tensor(torch.nan)

    def differ(self, one: Tensor, other: Tensor) -> bool:
        near = SAME * float(self.first.max() - self.first.min()) + 1e-6
        return one.shape != other.shape or not float((one - other).abs().max()) <= near  # true for NaN, too

    def differ_by_chance(self) -> bool:
        """Whether further passes of the same batch have different logits. Sets `few` to the logits of the
        first images alone."""
        from rbtools.rng.foreign import states

        before = states(self.images.device)
        other = self.differ(self.first, self.logits(self.images))
        self.few = self.logits(self.images[:_FEW])
        if states(self.images.device) != before:
            other = other or any(self.differ(self.first, self.logits(self.images)) for _ in range(_PASSES))
        return other or any(self.differ(self.few, self.logits(self.images[:_FEW])) for _ in range(_UNSEEN))

    def differ_by_place(self, images: Tensor) -> bool:
        """Whether the logits of half of the images change when this half is a batch in another order."""
        whole = self.logits(images)
        if not bool(whole.isfinite().all()):  # the evaluation reports this
            return False
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
        half = order[: (len(images) + 1) // 2].to(images.device)
        return self.differ(whole[half], self.logits(images[half]))

    def numbers(self) -> tuple[str, str]:
        """The fields `kind` and `numbers` of the randomness of a randomised model."""
        from rbtools.rng.foreign import ExampleNumbers, RandomisedModel

        everyone = torch.arange(len(self.images), device=self.images.device)
        some, kinds, numbers = everyone[:_FEW].flip(0), set[str](), "uncontrolled"
        for one_by_one in (False, True):
            tried = RandomisedModel(self.model, one_by_one)
            shared = depends = False
            for number in range(_CHECKS):
                results = []
                for rows in (everyone, some):
                    with ExampleNumbers(0, "probe", rows, number) as context:
                        results.append(self.logits(self.images[rows], tried))
                    kinds |= context.kinds
                    shared |= context.shared and not one_by_one
                depends |= self.differ(results[0][some], results[1])
            if not shared and not depends:
                numbers = "one by one" if one_by_one else "example"
                break
        return "dropout" if kinds == {"dropout"} else "noise", numbers


# --- its evaluation -------------------------------------------------------------------------------


def controlled(model: nn.Module, randomness: Randomness) -> nn.Module:
    """The model to evaluate, which is the given model or, if it is randomised, a `RandomisedModel`."""
    if not randomness.randomised:
        return model
    from rbtools.rng.foreign import RandomisedModel

    return RandomisedModel(model, randomness.numbers != "example")


def judged(evaluation: Evaluation, randomness: Randomness, draws: int) -> tuple[Evaluation, str | None]:
    """The evaluation of a model, with means over `draws` passes if it is randomised, and a sentence that
    reports this, or None. Raises RbError if the evaluation does not support such means."""
    if not randomness.randomised:
        return evaluation, None
    changed = by_draws(evaluation, draws) if draws > 1 else evaluation
    methods: list[Any] = [getattr(spec, "method", None) for spec in changed.specs]
    eot = next((method.draws_each for method in methods if hasattr(method, "draws_each")), None)
    told = changed is not evaluation or eot is not None  # rb-pr is unchanged
    return changed, randomness.sentence(draws, eot) if told else None


def by_draws(evaluation: Evaluation, draws: int) -> Evaluation:
    """The evaluation with means over random passes instead of the result of one pass. Raises RbError if the
    evaluation does not support such means."""
    every = evaluation.every
    specs, along = ([spec.by_draws(draws) for spec in part] for part in (evaluation.specs, evaluation.along))
    if specs == [*evaluation.specs]:
        return evaluation
    if None in (*specs, *along):
        raise RbError(
            f"The model is randomised, but {evaluation.title} cannot be averaged over its random draws."
            " Measure its accuracy with rb-attack or rb-corrupt, or use a single draw with --draws 1."
        )
    if any(spec.detail for spec in every) or evaluation.save is not None:
        raise RbError(
            "--detail and --save-adv describe a single pass, but this model is randomised. Leave them out."
        )
    if any(spec.needs for spec in every):
        raise RbError(
            "--ladder needs a fixed outcome for each image, but this model is randomised. Leave it out."
        )
    return replace(evaluation, title=f"{evaluation.title}, {draws} draws", specs=(*specs,), along=(*along,))

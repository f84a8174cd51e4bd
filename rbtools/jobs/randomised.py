"""Randomised models of records, and those that adapt: what was found of one, and the verdicts for it.

A user's model is run on the same images twice, once: the store keeps what was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from rbtools.errors import RbError
from rbtools.evaluation.adapting import adapting
from rbtools.evaluation.base import EvalTask, default_chunk_size
from rbtools.evaluation.by_draws import by_draws
from rbtools.execution import device
from rbtools.inputs.resolve import Inputs
from rbtools.records import dumps
from rbtools.store import digest

if TYPE_CHECKING:
    import torch
    from torch import nn

VERSION = 1
_IMAGES = 8  # of the passes that look for randomness, and of the pilot
_WORDS = {"dropout": "dropout is on in its forward pass", "noise": "its forward pass draws random numbers"}
_DECLARE = (
    "If it adapts to its test images, say so: --batch 64:adapts=batch, where every batch of 64 starts from"
    " the checkpoint, or --batch 64:adapts=stream, where the state goes on from batch to batch."
)
_known: dict[str, Found] = {}


class Found(NamedTuple):
    """What is random in a model, as `evaluation.randomised.Randomness` has it. eot: the draws that a gradient
    needs by the pilot; agreed: the share of pixels by which that was decided."""

    kind: str = "none"
    numbers: str = "example"
    batch: bool = False
    changes: bool = False
    eot: int = 1
    agreed: float = 1.0

    @property
    def randomised(self) -> bool:
        """Whether the same image gives other logits the second time."""
        return self.kind != "none"


def found(inputs: Inputs) -> Found:
    """What is random in the record's model. Networks that rb-train made have nothing random."""
    run = inputs.run
    if "checkpoint_file" not in inputs.record:
        return Found()
    key = digest({"version": VERSION, **inputs.fields, "eot_max": run.settings.eot_max})
    if key not in _known:
        stored = run.store.get(f"randomness:{key}")
        if stored is None and run.plan is not None:
            return Found()
        if stored is None:
            stored = dumps(_looked(inputs)._asdict()).decode()
            run.store.put(f"randomness:{key}", stored)
        _known[key] = Found(**orjson.loads(stored))
    return _known[key]


def judged(inputs: Inputs, task: EvalTask) -> EvalTask:
    """The task, with verdicts by rates where the model is randomised, and of whole batches where it adapts.

    Raises RbError for a model whose result for an image depends on other images, unless it is declared to
    adapt, and for a task that has no such verdict.
    """
    look, settings = found(inputs), inputs.run.settings
    if settings.adapts is not None:
        _check_adapts(look, inputs)
        return adapting(task, settings.adapts, settings.batch)
    if look.batch or look.changes:
        raise RbError(_adapts(look))
    if not look.randomised or settings.draws == 1:
        return task
    inputs.run.report.notify(_sentence(inputs, look))
    remark = None
    if look.agreed < _agreed():
        remark = (
            f"The pilot stopped at {look.eot} draws: the sign of their mean gradient agrees with that of"
            f" {8 * look.eot} draws on {look.agreed:.0%} of the pixels (wanted: {_agreed():.0%}). A larger"
            " --draws N:eot-max=M may find more."
        )
    return by_draws(task, settings.draws, look.eot, remark)


def marked(record: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
    """The record, with `randomised` where its model is."""
    return {**record, "randomised": True} if found(inputs).randomised else record


def load(inputs: Inputs, place: torch.device) -> nn.Module:
    """The network on the device, with random numbers that belong to the example, and, where it adapts, with
    passes that start from the same state."""
    from rbtools.evaluation.randomised import AdaptingModel, controlled

    if inputs.run.settings.adapts is not None:
        return AdaptingModel(inputs.load_model(place))
    return controlled(inputs.load_model(place), found(inputs))


def _agreed() -> float:
    from rbtools.evaluation.randomised import AGREED

    return AGREED


def _looked(inputs: Inputs) -> Found:
    """What passes of the first images find."""
    from rbtools.evaluation import randomised

    dataset, settings = inputs.data.load(), inputs.run.settings
    ids = inputs.data.order(dataset.labels)[:_IMAGES]
    with device.taken(inputs.run, inputs.threads()) as place:
        model = inputs.load_model(place)
        images = dataset.images[ids].to(place).float().div(255)
        look = randomised.randomness_of(model, images)
        if look and look.changes:  # in what the model holds besides its parameters and buffers?
            again = randomised.randomness_of(randomised.AdaptingModel(inputs.load_model(place)), images)
            return Found(again.kind, again.numbers, look.batch or again.batch, look.changes)
        if not look or look.adapts:
            return Found(look.kind, look.numbers, look.batch, look.changes)
        chunk = settings.batch or default_chunk_size(place, images.shape[1:])
        labels = dataset.labels[ids].to(place)
        eot = randomised.pilot(randomised.controlled(model, look), images, labels, settings.eot_max, chunk)
    return Found(look.kind, look.numbers, look.batch, look.changes, *eot)


def _sentence(inputs: Inputs, look: Found) -> str:
    """What a randomised model is judged by."""
    arch, draws = inputs.record["arch"], inputs.run.settings.draws
    single = {
        "example": "",
        "one by one": " Some of its random numbers belong to the batch: every image goes through it alone.",
        "uncontrolled": " Its random numbers come from a generator of its own: results do not repeat.",
    }[look.numbers]
    return (
        f"{arch.get('name') or arch.get('str')} is randomised: {_WORDS[look.kind]}. Verdicts are rates over"
        f" {draws} draws, and attacks use means over {look.eot} draws (--draws, --eot).{single}"
    )


def _adapts(look: Found) -> str:
    """Why a model that depends on other images is refused."""
    if look.changes:
        return (
            "The model changes its parameters or buffers while it is tested, so a result depends on the"
            f" images before it. {_DECLARE} If it is not meant, call model.eval() before it is saved."
        )
    return (
        "The model is in train mode: what it gives for an image depends on the others of its batch."
        f" {_DECLARE} If it is not meant, call model.eval() before it is saved, and leave the choice to"
        " module.training."
    )


def _check_adapts(look: Found, inputs: Inputs) -> None:
    """Raise RbError for a model that is declared to adapt, and does not or is also randomised."""
    adapts = inputs.run.settings.adapts
    if not (look.batch or look.changes) and inputs.run.plan is None:
        raise RbError(
            f"--batch has adapts={adapts}, but the model does not adapt: it gives the same for an image in"
            f" any batch and after any other. Leave adapts={adapts} out; every result would depend on the"
            " batch for nothing."
        )
    if look.randomised:
        raise RbError(
            f"The model adapts, and it is randomised, too: {_WORDS[look.kind]}. Only one of the two can be"
            " evaluated. Give its random numbers a fixed seed in every pass."
        )

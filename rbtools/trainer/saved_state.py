"""The state of a training after an epoch, from which an interrupted one goes on."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rbtools import unpickle
from rbtools.lazy import torch
from rbtools.models import folding

if TYPE_CHECKING:
    from rbtools.trainer.loop import _Training


def to_bytes(training: _Training) -> bytes:
    """Everything that the next epoch needs, as bytes that `unpickle.torch_file` reads."""
    buffer = io.BytesIO()
    torch.save(
        {
            # Copied: weights of several seeds may be views of one tensor, which would be stored whole.
            "model": {name: value.clone() for name, value in training.model.state_dict().items()},
            "averaged": None if training.averaged is None else training.averaged.model.state_dict(),
            "optimizer": training.optimizer.state_dict(),
            "schedule": training.schedule.state_dict(),
            "epoch": training.epoch,
            "history": training.history,
            "tracked": training.course.history,
            "best": training.best,
            "drawn": training.drawn,
            "passes": training.passes.totals,
            "places": training.places,
            "threads": torch.get_num_threads() if training.device.type == "cpu" else None,
            "carried": training.carried,
        },
        buffer,
    )
    return buffer.getvalue()


def threads(data: bytes | None) -> int | None:
    """The CPU threads (of each process) that the training had; None without a state that says so."""
    try:
        number = None if data is None else unpickle.torch_file(io.BytesIO(data)).get("threads")
    except Exception:  # torch raises many kinds for damaged files: `resume` says what is wrong
        return None
    return number if type(number) is int and number > 0 else None


def resume(training: _Training, data: bytes | None) -> bool:
    """Continue from a stored state, if there is one; False if it does not fit: then start again."""
    if data is None:
        return True
    try:
        state = unpickle.torch_file(io.BytesIO(data))
        training.model.load_state_dict(state["model"])
        if training.averaged is not None:
            training.averaged.model.load_state_dict(state["averaged"])
        training.optimizer.load_state_dict(state["optimizer"])
        training.schedule.load_state_dict(state["schedule"])
        training.epoch, training.history, training.places = state["epoch"], state["history"], state["places"]
        training.best, training.passes.totals = state["best"], state["passes"]
        training.drawn = state["drawn"]
        training.course.history = state["tracked"]
        for name, values in training.carried.items():
            values.copy_(state["carried"][name])
    except Exception as wrong:  # torch raises many kinds for damaged files; starting again is correct
        name = training.arch.get("name", "The network")
        why = f"what was kept of it does not fit ({folding.reason(wrong)})"
        training.run.report.notify(f"{name}: its training starts again; {why}.")
        return False
    return True

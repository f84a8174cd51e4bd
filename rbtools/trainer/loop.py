"""The training loop. The method computes the loss of a batch; the loop does everything else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.execution.device import environment, mps_runs, out_of_memory
from rbtools.execution.report import Pace
from rbtools.execution.run import Run
from rbtools.lazy import nn, torch
from rbtools.models import weights_file
from rbtools.spaces.identity import identity
from rbtools.store import object_name
from rbtools.trainer import begin, distributed, init, tracking, validation
from rbtools.trainer.begin import TrainSetup, stepping
from rbtools.trainer.init import mixed_seed
from rbtools.trainer.metrics import Totals, check_loss, diverged
from rbtools.trainer.optim import PER_STEP, batches, deterministic
from rbtools.trainer.state import TrainState, share_carried, weights_of
from rbtools.trainer.step import train_step

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.trainer.train_model import TrainingTask

READ_EVERY = 32
"""On a GPU the loss is read, and progress reported, after this number of steps."""
_SHORT = 1.0
"""If writing the state took at most this number of seconds, the next epoch writes it again."""
_TIMES_AS_LONG = 10
"""If it took longer, the state is not written again for this multiple of the duration."""


def fit(task: TrainingTask, run: Run, key: str, device: torch.device, stored: bytes | None) -> dict[str, Any]:
    """Train from the beginning, or from the last state that an interrupted run of `key` stored. Returns the
    fields for the record (see `result`), with names of checkpoints in the store. Processes other than process
    0 return nothing. Raises RbError if the training diverges or memory runs out."""
    setup, state = begin.start(task, run, device, stored)
    train(setup, state, lambda state: run.store.keep_state(key, state.to_bytes()))
    if distributed.rank() != 0:
        return {}
    # Only fields that determine the network, so that equal training runs give equal bytes.
    about = setup.examples.about
    facts = {"arch": identity(setup.arch), "classes": about.classes, "shape": list(about.shape)}
    files: dict[str, bytes] = {}

    def named(model: nn.Module) -> str:
        data = weights_file.to_bytes(model, facts)
        files[object_name(data)] = data
        return object_name(data)

    done = result(setup, state, named)
    for name in task.recipe.stored(done):
        run.store.keep_object(files[name])
    return done


def train(setup: TrainSetup, state: TrainState, keep: Callable[[TrainState], None] | None = None) -> None:
    """Train to the end. In process 0, `keep` is called with the state after each epoch except the last. If a
    call took more than a second, the next call waits ten times as long. (On CIFAR-10, FGSM-PGI's state has
    0.7 GB. On an H200, writing this state took 3.4 s, and training an epoch took 2.7 s.)"""
    recipe = setup.recipe
    size = setup.batches * recipe.batch_size
    pace = Pace(recipe.epochs * size, state.epoch * size)
    last_end, writing_seconds = time.perf_counter(), 0.0
    with deterministic(recipe.deterministic):
        while goes_on(setup, state):
            setup.report.check_cancelled()
            try:
                train_epoch(setup, state, pace)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                count = recipe.micro_batch or recipe.batch_size
                raise RbError(
                    f"Memory ran out with {count} images at once. Send each batch through in smaller pieces"
                    " with --micro-batch M, or use a smaller --batch-size."
                ) from error
            start = time.perf_counter()
            due = writing_seconds <= _SHORT or start - last_end >= _TIMES_AS_LONG * writing_seconds
            if keep is not None and due and goes_on(setup, state) and distributed.rank() == 0:
                keep(state)
                last_end = time.perf_counter()
                writing_seconds = last_end - start


def goes_on(setup: TrainSetup, state: TrainState) -> bool:
    if state.epoch >= setup.recipe.epochs or state.stopped:
        return False
    waited = 0 if state.best is None else state.epoch - state.best["epoch"]
    return setup.recipe.patience is None or waited < setup.recipe.patience


def train_epoch(setup: TrainSetup, state: TrainState, pace: Pace) -> None:
    """Train one epoch and add its numbers to the history. Raises RbError if the training diverges."""
    torch.manual_seed(mixed_seed(setup.settings.seed, f"epoch {state.epoch}"))  # for dropout
    ids = setup.examples.ids  # on the CPU, like images that do not fit into a GPU
    parts = batches(ids[torch.randperm(len(ids))], setup.recipe.batch_size)
    method = stepping(setup.method, setup.recipe, state.carried)
    totals, rate = Totals(setup.device), 0.0
    worst = torch.zeros((), dtype=torch.float64, device=setup.device)
    _wait(setup.device)
    start = time.perf_counter()
    setup.networks.model.train()
    with setup.networks.passes:
        for number, part in enumerate(parts):
            for following in parts[number + 1 : number + 2]:
                streaming.prefetch(setup.examples.images, distributed.share(following))
            step = state.epoch * len(parts) + number
            if step == setup.drawn:
                state.drawn = weights_of(state.model)
            worst = torch.maximum(worst, train_step(setup, state, part, method, totals))
            rate = state.optimizer.param_groups[0]["lr"]
            if setup.recipe.schedule in PER_STEP:
                state.schedule.step()
            # Reading the loss means waiting for a GPU.
            if setup.device.type == "cpu" or (number + 1) % READ_EVERY == 0 or number + 1 == len(parts):
                check_loss(float(worst), state.epoch)
                setup.report.progress(_progress(setup, state, number + 1, totals, pace))
    if setup.recipe.schedule not in PER_STEP:
        state.schedule.step()
    # The loss checks the weights before each step; the weights after the last step are checked here.
    if not all(value.isfinite().all() for value in state.model.state_dict().values()):
        raise diverged("weights are NaN or infinite", state.epoch)
    _wait(setup.device)
    _end_epoch(setup, state, parts, totals, {"lr": rate, "seconds": time.perf_counter() - start})


def _wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work, before the clock is read."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


_IN_WORDS = {"loss": "loss", "acc": "accuracy", "robust_acc": "robust accuracy"}


def _progress(setup: TrainSetup, state: TrainState, batch: int, totals: Totals, pace: Pace) -> str:
    means = " · ".join(f"{_IN_WORDS[name]} {value:.3f}" for name, value in totals.means().items())
    where = f"epoch {state.epoch + 1}/{setup.recipe.epochs} · batch {batch}/{setup.batches}"
    speed = pace.words((state.epoch * setup.batches + batch) * setup.recipe.batch_size)
    who = f"{setup.method.name} seed {setup.settings.seed}"
    return " · ".join(filter(None, [who, where, speed, means]))


def _end_epoch(
    setup: TrainSetup, state: TrainState, parts: Sequence[Tensor], totals: Totals, numbers: dict[str, float]
) -> None:
    """Exchange the processes' parts of the state, validate, measure, and extend the history."""
    for model in dict.fromkeys((state.model, state.kept)):
        distributed.share_buffers(model)
    totals.gather()
    share_carried(state.carried, parts)
    state.epoch += 1
    place = setup.device.type
    if place == "cpu":
        threads = torch.get_num_threads()
        place = f"cpu, {threads} thread{'s' * (threads > 1)}"
    state.places += [] if place in state.places else [place]
    with setup.report.clock.stage("validation"):
        checked = setup.checks.after(state)
    for name, value in {**totals.means(), **checked, **numbers}.items():
        state.history.setdefault(name, []).append(float(f"{value:.6g}"))
    if setup.tracker is not None:
        setup.tracker.after(state, last=not goes_on(setup, state))
    if setup.recipe.stop_on is not None:
        state.stopped = tracking.stops(setup.recipe, state, setup.device)
    if validation.overfitting(state.history) == state.epoch:
        setup.tell(validation.overfitting_in_words(state.history))
    who = {"arch": setup.arch.get("name"), "method": setup.method.name, "seed": setup.settings.seed}
    last = {name: values[-1] for name, values in state.history.items()}
    epochs = {"epoch": state.epoch, "epochs": setup.recipe.epochs}
    setup.report.event({"event": "epoch", **who, **epochs, **last})


def result(setup: TrainSetup, state: TrainState, keep: Callable[[nn.Module], str]) -> dict[str, Any]:
    """Return the fields of a finished training run for the record. `keep` is called with each network and
    returns the name of its checkpoint. The history maps a quantity to a list with an entry per epoch."""
    recipe, kept, place = setup.recipe, state.kept, setup.device.type
    seconds = state.history.get("seconds", [])
    steady = seconds[1:] or seconds  # the first epoch warms up caches and kernels
    if state.drawn is not None:
        kept.load_state_dict(state.drawn)
    last = keep(kept)
    done: dict[str, Any] = {
        "checkpoint": last,
        "history": state.history,
        "seconds_per_epoch": round(sum(steady) / len(steady), 4) if steady else None,
        "device": place,
        "environment": environment(setup.device),
        "threads": torch.get_num_threads() if place == "cpu" else None,
        "normalize": init.normalization(state.model, recipe, setup.examples.about),
    }
    if shortcuts := setup.networks.shortcuts():
        done["prepared"] = shortcuts
    if len(state.places) > 1:
        done["trained_on"] = state.places
    if place == "cuda" and mps_runs():
        done["mps"] = True
    if setup.drawn is not None:
        done["output"] = {"step": setup.drawn, "of": setup.steps}
    if (overfitted := validation.overfitting(state.history)) is not None:
        done["catastrophic_overfitting"] = overfitted
    done |= validation.at_chance(setup, state)
    if state.epoch:
        done["passes"] = setup.networks.passes.an_image()
    if distributed.count() > 1 and distributed.has_batchnorm(state.model):
        done["batchnorm"] = "synchronised" if place == "cuda" else "each process"
    if state.epoch < recipe.epochs:
        done["stopped_after"] = state.epoch
    if setup.tracker is not None:
        done |= {"tracked": state.tracked, "tracking": setup.tracker.settings()}
    if held := len(setup.examples.held):
        done["validation"] = {"n": held, **validation.settings(setup.method)}
    if state.best is not None:
        kept.load_state_dict(state.best["state"])
        is_last = state.best["epoch"] == state.epoch and state.drawn is None
        done |= {"best": last if is_last else keep(kept), "best_epoch": state.best["epoch"]}
    return done

"""The training loop: the method computes the loss of a batch, everything else is here."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.execution import turns
from rbtools.execution.device import out_of_memory
from rbtools.execution.run import Run
from rbtools.execution.workers_per_gpu import mps_runs
from rbtools.lazy import nn, torch
from rbtools.models import checkpoint
from rbtools.report import Pace
from rbtools.spaces.identity import identity
from rbtools.trainer import begin, carried, distributed, init, validation
from rbtools.trainer.begin import TrainSetup, stepping
from rbtools.trainer.init import mixed_seed
from rbtools.trainer.metrics import Totals, check_loss, diverged
from rbtools.trainer.schedule import PER_STEP, batches, deterministic, has_batchnorm
from rbtools.trainer.state import TrainState, weights_of
from rbtools.trainer.step import train_step

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.trainer.train_model import TrainingTask
    from rbtools.training.base import Method

READ_EVERY = 32
"""Steps on a GPU between reading the loss and reporting progress."""


def fit(task: TrainingTask, run: Run, key: str, device: torch.device, stored: bytes | None) -> dict[str, Any]:
    """Train from the start, or from the state that an interrupted run of `key` stored after its last epoch.

    Returns what the record needs, see `result`, with names of checkpoints in the store; nothing in the other
    processes of the same training. Raises RbError if the training diverges or memory runs out.
    """
    setup, state = begin.start(task, run, device, stored)

    def keep(state: TrainState) -> None:
        run.store.keep_state(key, state.to_bytes())

    train(setup, state, keep)
    return result(setup, state, kept_in(run, setup)) if distributed.rank() == 0 else {}


def train(setup: TrainSetup, state: TrainState, keep: Callable[[TrainState], None] | None = None) -> None:
    """Train to the end. `keep` is given the state after each epoch but the last, in process 0."""
    recipe = setup.recipe
    with deterministic(recipe.deterministic):
        pace = pace_of(setup, state)
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
                    " with --batch-size N:micro=M, or use a smaller --batch-size."
                ) from error
            if keep is not None and goes_on(setup, state) and distributed.rank() == 0:
                keep(state)


def pace_of(setup: TrainSetup, state: TrainState) -> Pace:
    """The clock of a training whose next epoch begins."""
    size = setup.batches * setup.recipe.batch_size
    return Pace(setup.recipe.epochs * size, state.epoch * size)


def goes_on(setup: TrainSetup, state: TrainState) -> bool:
    """Whether there is another epoch to train."""
    if state.epoch >= setup.recipe.epochs:
        return False
    waited = 0 if state.best is None else state.epoch - state.best["epoch"]
    return setup.recipe.patience is None or waited < setup.recipe.patience


def train_epoch(setup: TrainSetup, state: TrainState, pace: Pace) -> None:
    """Train one epoch and write its line of history."""
    epoch = Epoch(setup, state, pace)
    with setup.networks.passes:
        for number, ids in enumerate(epoch.batches):
            method = epoch.before(number)
            epoch.after(number, train_step(setup, state, ids, method, epoch.totals))
    epoch.end()


class Epoch:
    """An epoch under way: `before` and `after` surround each step, `end` follows the last one."""

    def __init__(self, setup: TrainSetup, state: TrainState, pace: Pace) -> None:
        self.setup, self.state, self.pace = setup, state, pace
        seed = mixed_seed(setup.settings.seed, f"epoch {state.epoch}")
        torch.manual_seed(seed)  # dropout's numbers
        ids = setup.examples.ids  # on the CPU, where images that do not fit a GPU are
        self.batches = batches(ids[torch.randperm(len(ids))], setup.recipe.batch_size)
        self.method = stepping(setup.method, setup.recipe, state.carried)
        self.totals, self.reported, self.rate = Totals(), 0, 0.0
        self.worst = torch.zeros((), dtype=torch.float64, device=setup.device)
        self._wait()
        self.start = time.perf_counter()
        setup.networks.step.train()

    def before(self, number: int) -> Method[Any]:
        """Prepare a step, and return the method as it is in it."""
        setup, state = self.setup, self.state
        for following in self.batches[number + 1 : number + 2]:
            streaming.prefetch(setup.examples.images, distributed.share(following))
        step = state.epoch * len(self.batches) + number
        if step == setup.drawn:
            state.drawn = weights_of(state.model)
        return self.method.at(step / max(setup.steps - 1, 1))

    def after(self, number: int, loss: Tensor) -> None:
        """Follow the schedule after a step with this loss, and report progress. Raises RbError if it
        diverged.
        """
        setup, state = self.setup, self.state
        self.worst = torch.maximum(self.worst, loss)
        self.rate = state.optimizer.param_groups[0]["lr"]
        if setup.recipe.schedule in PER_STEP:
            state.schedule.step()
        turns.pass_on()
        if reads_loss(setup, number):
            check_loss(float(self.worst), state.epoch)
            setup.report.progress(self._progress(number + 1))
            setup.report.after_batch(self.totals.count - self.reported)
            self.reported = self.totals.count

    def end(self, together: int = 1) -> None:
        """Validate, measure and write the history. `together`: trainings, this one among them, that made each
        step together. Raises RbError if the weights are not finite.
        """
        setup, state = self.setup, self.state
        if setup.recipe.schedule not in PER_STEP:
            state.schedule.step()
        # The loss checks the weights before each step; those after the last one are checked here.
        if not all(value.isfinite().all() for value in state.model.state_dict().values()):
            raise diverged("weights are NaN or infinite", state.epoch)
        self._wait()
        seconds = (time.perf_counter() - self.start) / together  # without the validation
        for model in dict.fromkeys((state.model, state.kept)):
            distributed.share_buffers(model)
        self.totals.gather(setup.device)
        carried.share(state.carried, self.batches)
        state.epoch += 1
        place = _place(setup.device, together)
        state.places += [] if place in state.places else [place]
        with setup.report.clock.stage("validation"):
            checked = setup.checks.measure(state, single_step=setup.method.single_step)
        numbers = {**self.totals.means(), **checked, "lr": self.rate, "seconds": seconds}
        for name, value in numbers.items():
            state.history.setdefault(name, []).append(float(f"{value:.6g}"))
        if setup.tracker is not None:
            setup.tracker.after(state, last=not goes_on(setup, state))
        _report_epoch(setup, state)

    def _wait(self) -> None:
        """Wait until a GPU has finished, before the clock is read."""
        if self.setup.device.type == "cuda":
            torch.cuda.synchronize(self.setup.device)

    def _progress(self, batch: int) -> str:
        setup, count = self.setup, len(self.batches)
        means = " · ".join(f"{name} {value:.3f}" for name, value in self.totals.means().items())
        where = f"epoch {self.state.epoch + 1}/{setup.recipe.epochs} · batch {batch}/{count}"
        pace = self.pace.words((self.state.epoch * count + batch) * setup.recipe.batch_size)
        who = f"{setup.method.name} seed {setup.settings.seed}"
        return " · ".join(filter(None, [who, where, pace, means]))


def reads_loss(setup: TrainSetup, number: int) -> bool:
    """Whether to read the loss after this step: reading it makes a GPU wait."""
    if setup.device.type == "cpu":
        return True
    return (number + 1) % READ_EVERY == 0 or number + 1 == setup.batches


def _place(device: torch.device, together: int) -> str:
    """The processor of an epoch, in words."""
    threads = torch.get_num_threads()
    on_cpu = f"cpu, {threads} thread{'s' * (threads > 1)}"
    place = on_cpu if device.type == "cpu" else device.type
    return place if together == 1 else f"{place}, {together} seeds stacked"


def _report_epoch(setup: TrainSetup, state: TrainState) -> None:
    """Warn of catastrophic overfitting; report the epoch's results, for --log."""
    if validation.overfitting(state.history) == state.epoch:
        setup.tell(validation.overfitting_in_words(state.history))
    who = {"arch": setup.arch.get("name"), "method": setup.method.name, "seed": setup.settings.seed}
    last = {name: values[-1] for name, values in state.history.items()}
    epochs = {"epoch": state.epoch, "epochs": setup.recipe.epochs}
    setup.report.event({"event": "epoch", **who, **epochs, **last})


def kept_in(run: Run, setup: TrainSetup) -> Callable[[nn.Module], str]:
    """Keeps checkpoints of a training in the run's store; returns their names."""
    # Only what determines the network, so that the same training always gives the same bytes.
    about = setup.examples.about
    facts = {"arch": identity(setup.arch), "classes": about.classes, "shape": list(about.shape)}
    return lambda model: run.store.keep_object(checkpoint.to_bytes(model, facts))


def result(setup: TrainSetup, state: TrainState, keep: Callable[[nn.Module], str]) -> dict[str, Any]:
    """What the record needs of a training that is done: checkpoint names, history (a list per quantity, an
    entry per epoch), seconds per epoch, passes, device, threads and normalisation.

    `keep` is given the networks to store, and returns the names of their checkpoints.
    """
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
        "threads": torch.get_num_threads() if place == "cpu" else None,
        "normalize": init.normalization(state.model, recipe, setup.examples.about),
    }
    if shortcuts := setup.networks.shortcuts():
        done["prepared"] = shortcuts
    if len(state.places) > 1 or any("stacked" in one for one in state.places):
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
    if distributed.count() > 1 and has_batchnorm(state.model):
        done["batchnorm"] = "synchronised" if place == "cuda" else "each process"
    if state.epoch < recipe.epochs:
        done["stopped_after"] = state.epoch
    if setup.tracker is not None:
        done |= {"tracked": state.tracked, "tracking": setup.tracker.settings()}
    if setup.checks.held_out is not None:
        done["validation"] = validation.settings(setup.method, len(setup.checks.held_out.ids))
    return done | _best(state, last, keep)


def _best(state: TrainState, last: str, keep: Callable[[nn.Module], str]) -> dict[str, Any]:
    """The checkpoint of the best epoch; that of the last one is kept as `last`."""
    if state.best is None:
        return {}
    state.kept.load_state_dict(state.best["state"])
    is_last = state.best["epoch"] == state.epoch and state.drawn is None
    return {"best": last if is_last else keep(state.kept), "best_epoch": state.best["epoch"]}

"""The training loop: the method computes the loss of a batch, everything else is here."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rbtools.attacks.active_examples import uploaded
from rbtools.datasets import streaming
from rbtools.errors import RbError
from rbtools.execution import turns
from rbtools.execution.device import out_of_memory
from rbtools.execution.run import Run
from rbtools.execution.workers_per_gpu import mps_runs
from rbtools.lazy import nn, torch
from rbtools.models import checkpoint, cuda_graphs, folding
from rbtools.report import Pace
from rbtools.rng.draws import Draws
from rbtools.spaces.identity import identity
from rbtools.trainer import (
    carried,
    distributed,
    division,
    eval_copy,
    gradient_buckets,
    init,
    optim,
    regularize,
    saved_state,
    theorem_lr,
    tracking,
    validation,
)
from rbtools.trainer.augment import augment, cutout
from rbtools.trainer.init import mixed_seed
from rbtools.trainer.metrics import Passes, Totals, check_loss, diverged
from rbtools.trainer.recipe import held_out
from rbtools.trainer.schedule import PER_STEP, Piece, batches, deterministic, has_batchnorm, schedule
from rbtools.training.base import Loss
from rbtools.training.chen_lee import ChenLee

if TYPE_CHECKING:
    from torch import Tensor

    from rbtools.trainer.train_model import TrainingTask

READ_EVERY = 32
"""Steps on a GPU between reading the loss and reporting progress."""


def fit(task: TrainingTask, run: Run, key: str, device: torch.device, state: bytes | None) -> dict[str, Any]:
    """Train from the start, or from `state`, which an interrupted run of `key` stored after its last epoch.

    Returns what the record needs: checkpoint names, history (a list per quantity, an entry per epoch),
    seconds per epoch, passes, device, threads and normalisation; nothing in the other processes of the same
    training. Raises RbError if the training diverges or memory runs out.
    """
    if task.recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # must be set before cuBLAS is first used
    training = _Training(task, run, device)
    if not saved_state.resume(training, state):
        training = _Training(task, run, device)  # the failed attempt may have loaded a part
    with deterministic(task.recipe.deterministic):
        training.begin()
        while training.goes_on():
            run.report.check_cancelled()
            try:
                training.one_epoch()
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                count = task.recipe.micro_batch or task.recipe.batch_size
                raise RbError(
                    f"Memory ran out with {count} images at once. Send each batch through in smaller pieces"
                    " with --micro-batch, or use a smaller --batch-size."
                ) from error
            if training.goes_on() and distributed.rank() == 0:
                run.store.keep_state(key, saved_state.to_bytes(training))
    return training.result() if distributed.rank() == 0 else {}


class _Training:
    """A running training."""

    def __init__(self, task: TrainingTask, run: Run, device: torch.device, *, stacked: bool = False) -> None:
        """`stacked`: several seeds go through their networks together, so no pass of one is recorded."""
        self.recipe, self.run, self.arch, self.about = task.recipe, run, task.record["arch"], task.data.about
        self.method, self.device = task.method, device
        dataset = task.data.load()
        if len(dataset.labels) and bool((dataset.labels == dataset.labels[0]).all()):
            raise RbError(
                f"All {len(dataset.labels)} training images of {task.data.name} are of one class, so there is"
                " nothing to learn. Expected images of two classes or more."
            )
        self.images = streaming.placed(dataset.images, device)
        self.labels = dataset.labels.to(device)
        ids, held = validation.split(dataset.labels, held_out(self.recipe, len(dataset.labels)))
        self.ids = ids
        self.validation = None
        if len(held):
            self.validation = validation.Validation(
                self.images, self.labels, held.to(device), task.method, run.settings.seed
            )
        self.single_step_check = None
        if task.method.single_step and len(held) < validation.ENOUGH:
            chosen = validation.few(dataset.labels, ids).to(device)
            self.single_step_check = validation.Validation(
                self.images, self.labels, chosen, task.method, run.settings.seed
            )
        self.model = init.network(task, run).to(device)
        task.method.check_network(self.model, self.about.shape)
        sizes = [len(part) for part in batches(self.ids, self.recipe.batch_size)]
        if distributed.count() > 1 and device.type == "cuda" and has_batchnorm(self.model):
            division.check_pieces(sizes, self.recipe.micro_batch, distributed.count())
            self.model = distributed.synchronised(self.model)
        self.averaged = None if self.recipe.ema is None else regularize.Averaged(self.model, self.recipe.ema)
        graphed, obstacle = None, self._obstacle_to_graphs()
        if task.prepare and not stacked:
            if obstacle is None:
                graphed = cuda_graphs.training(self.model, device, run.report.notify)
            elif device.type == "cuda":
                run.report.notify(cuda_graphs.not_used(cuda_graphs.NotRecorded(obstacle)))
        self.graphed = graphed
        self.step_model = self.model if graphed is None else graphed
        self.passes = Passes(self.step_model)
        self.carried = carried.allocate(task.method, len(dataset.labels), self.about.shape, device)
        self.step_method = task.method.carrying(self.carried)
        if self.recipe.filter is not None:
            self.step_method = ChenLee(task.method, self.recipe.warm_steps, self.recipe.filter_rule)
        self.scheduled_method = self.step_method
        self.half = task.precision == "bf16"
        if self.half:
            self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.eval_copy, self.inner_model = None, self.step_model
        if task.prepare and self.step_method.inner is not None and self.step_method.solves_in_eval:
            try:
                self.eval_copy = eval_copy.of(self.model, self.about.shape, bf16=self.half)
            except Exception as wrong:  # tracing a network may raise anything
                run.report.notify(
                    f"{self.arch.get('name', 'The network')}: inner attacks run on the network itself and"
                    f" take longer ({folding.reason(wrong)})."
                )
            if self.eval_copy is not None:
                self.inner_model = self.eval_copy
                if not (self.recipe.deterministic or stacked):
                    probe = torch.rand(2, *self.about.shape, generator=torch.Generator().manual_seed(0))
                    self.inner_model = cuda_graphs.frozen(self.eval_copy, probe.to(device), run.report.notify)
                self.passes.watch(self.inner_model)
        if self.recipe.lr_rule == "theorem1":
            few = theorem_lr.some(ids).to(device)
            images = self.images[few].float().div(255)
            self.model.eval()
            factor = theorem_lr.step_size(  # for a constant of 1
                self.arch, task.method, self.model, images, self.labels[few], run.settings.seed
            )
            self.recipe = dataclasses.replace(self.recipe, lr=self.recipe.lr * factor)
        groups: Any = self.model.parameters()
        if "l2" in self.recipe.regularize:
            groups = regularize.decayed(self.model, self.recipe.l2)
        self.optimizer = optim.of(self.recipe, groups, fused=device.type == "cuda")
        self.buckets = None
        if distributed.count() > 1:
            self.buckets = gradient_buckets.GradientBuckets(self.model, self._loss, self.about.shape)
        self.batches = len(sizes)
        self.schedule = schedule(self.optimizer, self.recipe, self.batches)
        self.epoch = 0
        self.history: dict[str, list[float]] = {}
        self.best: dict[str, Any] | None = None
        self.steps = self.recipe.epochs * self.batches
        self.draw = None  # the step whose initial weights are kept
        if self.recipe.output == "random" and self.steps:
            numbers = torch.Generator().manual_seed(mixed_seed(run.settings.seed, "output"))
            self.draw = int(torch.randint(self.steps, (), generator=numbers))
        self.drawn: dict[str, Tensor] | None = None
        self.stacked = 1  # trainings, this one among them, that make a step together
        self.places: list[str] = []  # processors of the epochs: rounding depends on them
        # Only process 0 measures.
        self.course = tracking.TrackingHistory(task.track if distributed.rank() == 0 else None, self)
        name = self.arch.get("name", "The network")
        for notice in division.notices(self.recipe, self.step_method, self.model, name, device):
            run.report.notify(notice)

    def _obstacle_to_graphs(self) -> str | None:
        """Why passes of a step are not recorded, if that is so."""
        if distributed.count() > 1:
            return "the sums over processes are not recorded"
        if self.recipe.deterministic:
            return "with --deterministic sums have one order, and a recording has another"
        if self.method.follows_operations:
            return f"{self.method.name} follows the operations of the network"
        return None

    def begin(self) -> None:
        """Start the clock before the first epoch of this run."""
        size = self.batches * self.recipe.batch_size
        self.pace = Pace(self.recipe.epochs * size, self.epoch * size)

    def goes_on(self) -> bool:
        """Whether there is another epoch to train."""
        if self.epoch >= self.recipe.epochs:
            return False
        waited = 0 if self.best is None else self.epoch - self.best["epoch"]
        return self.recipe.patience is None or waited < self.recipe.patience

    def one_epoch(self) -> None:
        """Train one epoch and write its line of history."""
        for piece in self.pieces():
            piece.loss = self._backward(piece)

    def pieces(self) -> Iterator[Piece]:
        """One epoch: yields the images of each backward pass, and expects it made, and its loss in them."""
        torch.manual_seed(mixed_seed(self.run.settings.seed, f"epoch {self.epoch}"))  # dropout's numbers
        order = self.ids[torch.randperm(len(self.ids))]  # on the CPU, where images that do not fit a GPU are
        totals, worst = Totals(), torch.zeros((), dtype=torch.float64, device=self.device)
        self._wait()
        start = time.perf_counter()
        self.step_model.train()
        with self.passes:
            parts, counted = batches(order, self.recipe.batch_size), 0
            for number, ids in enumerate(parts):
                for following in parts[number + 1 : number + 2]:
                    streaming.prefetch(self.images, distributed.share(following))
                if self.epoch * self.batches + number == self.draw:
                    self.drawn = {k: value.detach().clone() for k, value in self.model.state_dict().items()}
                self.step_method = self.scheduled_method.at(
                    (self.epoch * self.batches + number) / max(self.steps - 1, 1)
                )
                worst = torch.maximum(worst, (yield from self._step(ids, totals)))
                rate = self.optimizer.param_groups[0]["lr"]
                if self.recipe.schedule in PER_STEP:
                    self.schedule.step()
                turns.pass_on()
                if self._reads_loss(number):
                    check_loss(float(worst), self.epoch)
                    self.run.report.progress(self._words(number + 1, totals))
                    self.run.report.after_batch(totals.count - counted)
                    counted = totals.count
        if self.recipe.schedule not in PER_STEP:
            self.schedule.step()
        # The loss checks the weights before each step; those after the last one are checked here.
        if not all(value.isfinite().all() for value in self.model.state_dict().values()):
            raise diverged("weights are NaN or infinite", self.epoch)
        self._wait()
        seconds = (time.perf_counter() - start) / self.stacked  # without the validation
        for model in dict.fromkeys((self.model, self._kept())):
            distributed.share_buffers(model)
        totals.gather(self.device)
        carried.share(self.carried, batches(order, self.recipe.batch_size))
        self.epoch += 1
        if self._place() not in self.places:
            self.places.append(self._place())
        with self.run.report.clock.stage("validation"):
            validated = self._validate()
            numbers = totals.means() | validated | self._attacked(validated)
        for name, value in {**numbers, "lr": rate, "seconds": seconds}.items():
            self.history.setdefault(name, []).append(float(f"{value:.6g}"))
        self.course.after(self.epoch, not self.goes_on(), self._kept())
        self._warn_of_overfitting()
        self._tell()

    def _attacked(self, validated: Mapping[str, float]) -> dict[str, float]:
        """Of a training with one step: the accuracy under PGD on the held-out images, or if there are too few
        of them on some training images.
        """
        if not self.method.single_step:
            return {}
        check = self.single_step_check
        return {"pgd_acc": (validated if check is None else check.measure(self._kept()))["val_robust_acc"]}

    def _warn_of_overfitting(self) -> None:
        if validation.overfitting(self.history) == self.epoch:
            name = f"{self.arch.get('name', 'The network')} {self.method.name}"
            self.run.report.notify(f"{name}: {validation.overfitting_in_words(self.history)}")

    def _tell(self) -> None:
        """Report the results of this epoch, for --log and --tensorboard."""
        who = {"arch": self.arch.get("name"), "method": self.method.name, "seed": self.run.settings.seed}
        last = {name: values[-1] for name, values in self.history.items()}
        self.run.report.event(
            {"event": "epoch", **who, "epoch": self.epoch, "epochs": self.recipe.epochs, **last}
        )

    def _wait(self) -> None:
        """Wait until a GPU has finished, before the clock is read."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _reads_loss(self, number: int) -> bool:
        """Whether to read the loss after this step: reading it makes a GPU wait."""
        return self.device.type == "cpu" or (number + 1) % READ_EVERY == 0 or number + 1 == self.batches

    def _place(self) -> str:
        threads = torch.get_num_threads()
        on_cpu = f"cpu, {threads} thread{'s' * (threads > 1)}"
        place = on_cpu if self.device.type == "cpu" else self.device.type
        return place if self.stacked == 1 else f"{place}, {self.stacked} seeds stacked"

    def _kept(self) -> nn.Module:
        """The network that is validated and stored: with --ema the averaged one."""
        return self.model if self.averaged is None else self.averaged.model

    def _validate(self) -> dict[str, float]:
        """Accuracies on the held-out images; the best epoch so far is kept, of equal ones that of lower
        loss."""
        if self.validation is None:
            return {}
        numbers = self.validation.measure(self._kept())
        rank = (numbers["val_robust_acc"], -numbers["val_robust_loss"])
        if self.best is None or rank > tuple(self.best["rank"]):
            state = {name: value.detach().clone() for name, value in self._kept().state_dict().items()}
            self.best = {"epoch": self.epoch, "rank": list(rank), "state": state}
        return numbers

    def _step(self, ids: Tensor, totals: Totals) -> Generator[Piece, None, Tensor]:
        """One step of the optimiser on a batch, see `pieces`; its loss (float64, on the device)."""
        self.optimizer.zero_grad(set_to_none=True)
        whole, first = len(ids), int(ids[0])
        host = distributed.share(ids)
        ids = uploaded(host, self.device)
        draws = Draws(self.run.settings.seed, "train", ids, offset=self.epoch, host=host)
        images, targets = self._batch(ids, draws, first)
        pieces = batches(torch.arange(len(ids), device=ids.device), self.recipe.micro_batch or whole)
        pieces = [part for part in pieces if len(part)]  # a process may have no share of a small batch
        self.passes.totals["images"] += len(ids)
        self.passes.add(len(ids) * self.step_method.bound_passes(self.about.classes))
        value = torch.zeros((), dtype=torch.float64, device=self.device)
        with contextlib.ExitStack() as perturbed:
            for number, part in enumerate(pieces, 1):
                own = draws if len(pieces) == 1 else draws.take(part)
                # A loss is a mean over its examples: with this weight the pieces' gradients add up to the
                # batch's.
                weight = len(part) / whole
                piece = Piece(images[part], targets[part], own.child("method"), weight, perturbed)
                piece.last = number == len(pieces)
                yield piece
                assert piece.loss is not None
                value = value + totals.add(piece.loss, self.labels[ids[part]]) * weight
            if not pieces:
                self._backward_of_nothing(perturbed)
            value = distributed.sum_of(value)
            self.optimizer.step()
        if self.averaged is not None:
            self.averaged.update(self.model)
        if self.recipe.clean_pass:
            with torch.no_grad(), self._precision():
                for part in pieces:
                    self.step_model(images[part])
        return value

    def _backward(self, piece: Piece) -> Loss:
        """The loss of a part of the batch; its weighted gradient is added to the parameters'."""
        if self.buckets is not None:
            return self.buckets.backward(*piece.arguments, weight=piece.weight, last=piece.last)
        loss = self._loss(*piece.arguments)
        (loss.value * piece.weight).backward()
        return loss

    def _backward_of_nothing(self, perturbed: contextlib.ExitStack) -> None:
        """Take part in what the other processes compute of a batch of which this one has no share."""

        def take_part() -> None:
            if self._awp_now():
                perturbed.enter_context(self._perturbed(None))

        assert self.buckets is not None  # one process alone has a share of every batch
        self.buckets.backward_of_nothing(take_part)

    def _batch(self, ids: Tensor, draws: Draws, first: int) -> tuple[Tensor, Tensor]:
        """The batch's images in [0, 1], and their labels (N,) or distributions over classes (N, K).

        `first`: the first example of the batch, of which this process may have a share.
        """
        recipe, labels = self.recipe, self.labels[ids]
        streamed = isinstance(self.images, streaming.Streamed)
        at = draws.host if streamed and draws.host is not None else ids
        images = augment(self.images[at], recipe.augment or (), draws, 0)
        if "cutout" in recipe.regularize:
            assert recipe.cutout_length is not None
            images = cutout(images, recipe.cutout_length, draws)
        pixels = images.float().div(255)
        if self.half:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        if not recipe.label_smoothing and "mixup" not in recipe.regularize:
            return pixels, labels
        targets = regularize.distribution(labels, self.about.classes, recipe.label_smoothing)
        if "mixup" in recipe.regularize:
            seed = mixed_seed(self.run.settings.seed, f"mixup {self.epoch} {first}")
            pixels, targets = regularize.mixup(pixels, targets, recipe.mixup_alpha, seed)
        return pixels, targets

    def _loss(
        self, images: Tensor, targets: Tensor, draws: Draws, weight: float, perturbed: contextlib.ExitStack
    ) -> Loss:
        """The method's loss; with AWP the weights stay perturbed until `perturbed` is closed.

        `weight`: the images' share of the batch.
        """
        method, awp = self.step_method, self._awp_now()
        if self.graphed is not None:
            self.graphed.begin()
        if self.eval_copy is None and not awp:
            with self._precision():
                result: Loss = method(self.step_model, images, targets, draws)
                return result
        if self.eval_copy is None:
            with self._precision():
                inner_result = method.inner_attack(self.step_model, images, targets, draws)
        else:
            self.eval_copy.update()
            inner_result = method.inner_attack(self.inner_model, images, targets, draws)

        def loss() -> Loss:
            with self._precision():
                made: Loss = method.loss(self.step_model, images, targets, inner_result).mean()
            return made

        if not awp:
            return loss()
        perturbed.enter_context(self._perturbed(lambda: loss().value * weight))
        return loss()

    def _awp_now(self) -> bool:
        return "awp" in self.recipe.regularize and self.epoch >= self.recipe.awp_warmup

    def _perturbed(self, loss: Callable[[], Tensor] | None) -> contextlib.AbstractContextManager[None]:
        """Weights perturbed by AWP, for the loss of this process's share."""
        assert self.recipe.awp_gamma is not None
        total = distributed.sum_all if distributed.count() > 1 else None
        return regularize.perturbed_weights(self.model, loss, self.recipe.awp_gamma, total)

    def _precision(self) -> Any:
        """Autocast to bfloat16 if requested: weights, losses and the optimiser stay float32."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def _words(self, batch: int, totals: Totals) -> str:
        means = " · ".join(f"{name} {value:.3f}" for name, value in totals.means().items())
        where = f"epoch {self.epoch + 1}/{self.recipe.epochs} · batch {batch}/{self.batches}"
        pace = self.pace.words((self.epoch * self.batches + batch) * self.recipe.batch_size)
        return " · ".join(
            filter(None, [f"{self.method.name} seed {self.run.settings.seed}", where, pace, means])
        )

    def result(self) -> dict[str, Any]:
        """Store the checkpoints; return the fields of the record."""
        seconds = self.history.get("seconds", [])
        steady = seconds[1:] or seconds  # the first epoch warms up caches and kernels
        kept = self._kept()
        if self.drawn is not None:
            kept.load_state_dict(self.drawn)
        last = self._keep(kept)
        result: dict[str, Any] = {
            "checkpoint": last,
            "history": self.history,
            "seconds_per_epoch": round(sum(steady) / len(steady), 4) if steady else None,
            "device": self.device.type,
            "threads": torch.get_num_threads() if self.device.type == "cpu" else None,
            "normalize": init.normalization(self.model, self.recipe, self.about),
            **({"prepared": prepared} if (prepared := self._prepared()) else {}),
            **({"trained_on": self.places} if len(self.places) > 1 or self.stacked > 1 else {}),
        }
        if self.device.type == "cuda" and mps_runs():
            result["mps"] = True
        if self.draw is not None:
            result["output"] = {"step": self.draw, "of": self.steps}
        overfitted = validation.overfitting(self.history)
        if overfitted is not None:
            result["catastrophic_overfitting"] = overfitted
        result |= validation.at_chance(self, kept)
        if self.epoch:
            result["passes"] = self.passes.an_image()
        if distributed.count() > 1 and has_batchnorm(self.model):
            result["batchnorm"] = "synchronised" if self.device.type == "cuda" else "each process"
        if self.epoch < self.recipe.epochs:
            result["stopped_after"] = self.epoch
        result |= self.course.result()
        if self.validation is not None:
            result["validation"] = validation.settings(self.method, len(self.validation.ids))
        if self.best is not None:
            kept.load_state_dict(self.best["state"])
            is_last = self.best["epoch"] == self.epoch and self.drawn is None
            best = last if is_last else self._keep(kept)
            result |= {"best": best, "best_epoch": self.best["epoch"]}
        return result

    def _keep(self, model: nn.Module) -> str:
        # Only what determines the network, so that the same training always gives the same bytes.
        arch, shape = identity(self.arch), list(self.about.shape)
        facts = {"arch": arch, "classes": self.about.classes, "shape": shape}
        return self.run.store.keep_object(checkpoint.to_bytes(model, facts))

    def _prepared(self) -> list[str]:
        """The shortcuts of the inner attack's network, and whether passes were recorded."""
        steps = []
        if self.eval_copy is not None:
            steps = [*(["folded"] if self.eval_copy.folds else []), "channels-last"]
            steps += ["bf16"] if self.half else []
        recorded = cuda_graphs.in_use(self.inner_model) or cuda_graphs.in_use(self.step_model)
        return [*steps, *(["cuda-graphs"] if recorded else [])]

"""The training loop: the method gives the loss of a batch, everything else is here."""

from __future__ import annotations

import io
import math
import time
import zlib
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import models
from rbtools.datasets import streaming
from rbtools.engine import subject
from rbtools.engine.augment import augment
from rbtools.engine.draws import Draws
from rbtools.engine.recipe import CYCLED_MOMENTUM, Recipe
from rbtools.engine.run import Run
from rbtools.engine.tiles import out_of_memory
from rbtools.errors import RbError
from rbtools.models import checkpoint
from rbtools.models.normalize import Normalized

Schedule = torch.optim.lr_scheduler.LRScheduler


def fit(
    arch: dict[str, Any],
    data: subject.Data,
    method: Any,
    how: Recipe,
    run: Run,
    key: str,
    device: torch.device,
) -> dict[str, Any]:
    """Train from scratch, or on from the last epoch that an interrupted run of `key` finished.

    Returns what the record needs: checkpoint name, history (a list per quantity, an entry per
    epoch), seconds per epoch, device, threads and normalisation.
    """
    training = _Training(arch, data, method, how, run, device)
    if not training.resume(run.store.state(key)):
        training = _Training(arch, data, method, how, run, device)  # it may have taken over a part
    while training.epoch < how.epochs:
        run.pulse()
        try:
            training.one_epoch()
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise RbError(
                f"Memory ran out with {how.micro_batch or how.batch_size} images at once. Send each batch"
                " through in smaller pieces with --micro-batch, or use a smaller --batch-size."
            ) from error
        if training.epoch < how.epochs:
            run.store.keep_state(key, training.state())
    return training.result()


class _Training:
    """One training under way: everything that an epoch changes is in `state()`."""

    def __init__(
        self,
        arch: dict[str, Any],
        data: subject.Data,
        method: Any,
        how: Recipe,
        run: Run,
        device: torch.device,
    ) -> None:
        self.method, self.how, self.run, self.arch, self.about = method, how, run, arch, data.about
        self.device = device
        dataset = data.load()
        self.images = streaming.placed(dataset.images, self.device)
        self.labels = dataset.labels.to(self.device)
        self.model = self._initial().to(self.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(),
            lr=how.lr,
            momentum=how.momentum,
            nesterov=how.nesterov,
            weight_decay=how.weight_decay,
        )
        self.batches = len(_batches(self.labels, how.batch_size))
        self.schedule = _schedule(self.optimizer, how, self.batches)
        self.epoch = 0
        self.history: dict[str, list[float]] = {}
        if how.micro_batch is not None and how.micro_batch < how.batch_size and _has_batchnorm(self.model):
            run.remark(
                f"{arch.get('name', 'The network')} has BatchNorm, which sees {how.micro_batch} images at a"
                f" time instead of {how.batch_size}: --micro-batch changes the result, not only the memory."
            )
        self.places: list[str] = []  # where epochs were trained: another place rounds otherwise

    def _initial(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(_mixed(self.run.seed, "init"))
            network = models.build(
                self.arch,
                classes=self.about.classes,
                shape=self.about.shape,
                allow_code=self.run.allow_code,
            )
        if self.about.mean is None or self.about.std is None:
            return network
        return Normalized(network, self.about.mean, self.about.std)

    def one_epoch(self) -> None:
        """Train one epoch and write its line of history."""
        torch.manual_seed(_mixed(self.run.seed, f"epoch {self.epoch}"))  # dropout's numbers
        order = torch.randperm(len(self.labels)).to(self.device)
        totals = _Totals()
        start = time.perf_counter()
        self.model.train()
        for number, ids in enumerate(_batches(order, self.how.batch_size)):
            self._step(ids, totals)
            rate = self.optimizer.param_groups[0]["lr"]
            if self.how.schedule == "onecycle":
                self.schedule.step()
            self.run.progress(self._words(number + 1, totals))
        if self.how.schedule != "onecycle":
            self.schedule.step()
        # The loss tells of the weights before a step; those after the last one have to be looked at.
        if not all(value.isfinite().all() for value in self.model.state_dict().values()):
            raise self._diverged("weights are NaN or infinite")
        self.epoch += 1
        if self._place() not in self.places:
            self.places.append(self._place())
        for name, value in {
            **totals.means(),
            "lr": rate,  # of the last step
            "seconds": time.perf_counter() - start,
        }.items():
            self.history.setdefault(name, []).append(float(f"{value:.6g}"))

    def _place(self) -> str:
        threads = torch.get_num_threads()
        on_cpu = f"cpu, {threads} thread{'s' * (threads > 1)}"
        return on_cpu if self.device.type == "cpu" else self.device.type

    def _step(self, ids: Tensor, totals: _Totals) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        for part in _batches(ids, self.how.micro_batch or len(ids)):
            draws = Draws(self.run.seed, "train", part, offset=self.epoch)
            images = augment(self.images[part], self.how.augment or (), draws, 0).float().div(255)
            labels = self.labels[part]
            loss = self.method(self.model, images, labels, draws.child("method"))
            totals.add(loss, labels)
            if not math.isfinite(totals.last):
                raise self._diverged(f"the loss is {totals.last}")
            # A loss is a mean over its examples: weighted so, the pieces' gradients add up to the batch's.
            (loss.value * (len(part) / len(ids))).backward()
        self.optimizer.step()

    def _diverged(self, how: str) -> RbError:
        return RbError(
            f"The training diverged: {how} in epoch {self.epoch + 1}."
            " Lower the learning rate (--lr), or try another --seed."
        )

    def _words(self, batch: int, totals: _Totals) -> str:
        means = "  ".join(f"{name} {value:.3f}" for name, value in totals.means().items())
        where = f"epoch {self.epoch + 1}/{self.how.epochs}  batch {batch}/{self.batches}"
        return f"{self.method.name}  {where}  {means}"

    def state(self) -> bytes:
        """All that the next epoch needs, as bytes that `weights_only` loading reads."""
        buffer = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "epoch": self.epoch,
                "history": self.history,
                "places": self.places,
            },
            buffer,
        )
        return buffer.getvalue()

    def resume(self, data: bytes | None) -> bool:
        """Go on from a kept state, if there is one; False where it does not fit: start anew then."""
        if data is None:
            return True
        try:
            state = torch.load(io.BytesIO(data), map_location=self.device, weights_only=True)
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.schedule.load_state_dict(state["schedule"])
            self.epoch, self.history, self.places = state["epoch"], state["history"], state["places"]
        except Exception:  # torch raises many kinds for damaged files; starting anew is always right
            return False
        return True

    def result(self) -> dict[str, Any]:
        """Keep the checkpoint; return what the record says of the training."""
        seconds = self.history.get("seconds", [])
        steady = seconds[1:] or seconds  # the first epoch warms up caches and kernels
        mean, std = self.about.mean, self.about.std
        normalize = None if mean is None or std is None else [list(mean), list(std)]
        network = self.model.network if isinstance(self.model, Normalized) else self.model
        # Only what decides the network: the same training gives the same bytes whatever the record says.
        arch, shape = subject.identity(self.arch), list(self.about.shape)
        facts = {"arch": arch, "classes": self.about.classes, "shape": shape}
        data = checkpoint.to_bytes(network, facts, mean, std)
        return {
            "checkpoint": self.run.store.keep_object(data),
            "history": self.history,
            "seconds_per_epoch": round(sum(steady) / len(steady), 4) if steady else None,
            "device": self.device.type,
            "threads": torch.get_num_threads() if self.device.type == "cpu" else None,
            "normalize": normalize,
            **({"trained_on": self.places} if len(self.places) > 1 else {}),
        }


class _Totals:
    """Running means over an epoch of the loss and of the accuracies that the method reports."""

    def __init__(self) -> None:
        self.count = 0
        self.sums = {"loss": 0.0}
        self.last = 0.0

    def add(self, loss: Any, labels: Tensor) -> None:
        self.count += len(labels)
        self.last = float(loss.value.detach())
        self.sums["loss"] += self.last * len(labels)
        for name, logits in (("acc", loss.clean_logits), ("robust_acc", loss.adversarial_logits)):
            if logits is not None:
                right = float(logits.argmax(1).eq(labels).sum())
                self.sums[name] = self.sums.get(name, 0.0) + right

    def means(self) -> dict[str, float]:
        return {name: total / self.count for name, total in self.sums.items()} if self.count else {}


def _batches(order: Tensor, batch_size: int) -> list[Tensor]:
    """The batches of an epoch. The last one is kept though smaller, but never of one image alone:

    BatchNorm has no variance for that, so it joins the batch before it.
    """
    batches = list(order.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def _has_batchnorm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def _mixed(seed: int, purpose: str) -> int:
    return (seed * 0x9E3779B1 + zlib.crc32(purpose.encode())) % (1 << 63)


def _schedule(optimizer: torch.optim.Optimizer, how: Recipe, batches: int) -> Schedule:
    schedulers = torch.optim.lr_scheduler
    epochs = max(how.epochs, 1)
    if how.schedule == "onecycle":
        highest, lowest, _ = CYCLED_MOMENTUM
        return schedulers.OneCycleLR(
            optimizer,
            max_lr=how.lr,
            total_steps=epochs * batches,
            base_momentum=lowest,
            max_momentum=highest,
        )
    if how.schedule == "step":
        return schedulers.MultiStepLR(optimizer, list(how.milestones), gamma=how.decay)
    if how.schedule == "cosine":
        return schedulers.CosineAnnealingLR(optimizer, T_max=epochs)
    return schedulers.ConstantLR(optimizer, factor=1.0)

"""Seeds of one training in one step: their weights are stacked, and torch.func.vmap sends the batches of all
through all networks at once. Everything else of a training is that of its seed alone: its order of images,
its draws, its optimiser, its validation, its stored state. So its weights are those of a training alone, but
for rounding.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from rbtools.errors import RbError
from rbtools.execution.device import out_of_memory
from rbtools.models import folding
from rbtools.models.normalize import Preprocessed
from rbtools.rng.draws import Draws
from rbtools.trainer import begin, loop
from rbtools.trainer.begin import TrainSetup
from rbtools.trainer.eval_copy import EvalCopy
from rbtools.trainer.metrics import Passes
from rbtools.trainer.schedule import Piece, deterministic
from rbtools.trainer.state import TrainState
from rbtools.trainer.step import Step, loss_of
from rbtools.trainer.step_networks import StepNetworks
from rbtools.training.base import Loss, LossTerms

if TYPE_CHECKING:
    from rbtools.execution.run import Run
    from rbtools.report import Pace
    from rbtools.trainer.train_model import TrainingTask

_TOLERANCE = 0.1  # of the gradient's length: signs of an attack that rounding turns stay below
_TOLERANCE_OF_ATTACK = 0.5  # where the attack is in bfloat16; another batch or network gives 1 and more


class NotStacked(Exception):
    """Why the seeds of a training are trained one after another."""


def fit(
    task: TrainingTask, runs: Sequence[Run], keys: Sequence[str], device: torch.device
) -> list[dict[str, Any] | RbError]:
    """Train the task with the seed of each run, each as `loop.fit` does with its key: the results, or why a
    training failed, which ends no other.

    Raises NotStacked where the trainings cannot be stacked (nothing is lost then: their states are stored
    after each epoch), and RbError where memory runs out.
    """
    members = [
        StackedTraining(*begin.start(task, run, device, run.store.state(key), stacked=True))
        for run, key in zip(runs, keys, strict=True)
    ]
    done: dict[int, dict[str, Any] | RbError] = {}
    stack: _Stack | None = None
    with deterministic(task.recipe.deterministic):
        paces = {member: loop.pace_of(*member) for member in members}
        while len(done) < len(members):
            for at, member in enumerate(members):
                if at not in done and not loop.goes_on(*member):
                    done[at] = loop.result(*member, loop.kept_in(runs[at], member.setup))
            left = [at for at in range(len(members)) if at not in done]
            # After an interruption the seeds may be an epoch apart: those behind go first.
            behind = min((members[at].state.epoch for at in left), default=0)
            left = [at for at in left if members[at].state.epoch == behind]
            if not left:
                break
            group = [members[at] for at in left]
            if stack is None or stack.members != group:
                stack = _Stack(group)
            failed = _train_epoch(stack, paces)
            for at in left:
                if members[at] in failed:
                    done[at] = failed[members[at]]
                elif loop.goes_on(*members[at]):
                    runs[at].store.keep_state(keys[at], members[at].state.to_bytes())
    return [done[at] for at in range(len(members))]


class StackedTraining(NamedTuple):
    """One of the trainings."""

    setup: TrainSetup
    state: TrainState


def _train_epoch(stack: _Stack, paces: Mapping[StackedTraining, Pace]) -> dict[StackedTraining, RbError]:
    """An epoch of all trainings of the stack, step by step; those that failed, and why."""
    failed: dict[StackedTraining, RbError] = {}
    members = stack.members
    with _memory(members), contextlib.ExitStack() as counting:
        epochs = {member: loop.Epoch(*member, paces[member]) for member in members}
        for member in members:
            counting.enter_context(member.setup.networks.passes)
        for number in range(members[0].setup.batches):
            for member in epochs:
                member.setup.report.check_cancelled()
            if stack.members != list(epochs):
                stack = _Stack(list(epochs))
            for member, loss in zip(stack.members, _train_step(stack, epochs, number), strict=True):
                _attempt(member, epochs, failed, partial(epochs[member].after, number, loss))
            if not epochs:
                break
    together = len(epochs)
    with _memory(members):
        for member, epoch in list(epochs.items()):
            _attempt(member, epochs, failed, partial(epoch.end, together))
    return failed


def _attempt(
    member: StackedTraining,
    epochs: dict[StackedTraining, loop.Epoch],
    failed: dict[StackedTraining, RbError],
    action: Callable[[], None],
) -> None:
    """Act for one training; where it fails, it moves from `epochs` to `failed`."""
    try:
        action()
    except RbError as wrong:
        failed[member] = wrong
        del epochs[member]


def _train_step(stack: _Stack, epochs: Mapping[StackedTraining, loop.Epoch], number: int) -> list[Tensor]:
    """A step of each training of the stack; their losses."""
    steps = []
    for member, epoch in epochs.items():
        method = epoch.before(number)
        steps.append(Step(*member, epoch.batches[number], method, epoch.totals))
    for pieces in zip(*(step.pieces() for step in steps), strict=True):
        stack.backward(pieces)
    return [step.finish() for step in steps]


@contextlib.contextmanager
def _memory(members: Sequence[StackedTraining]) -> Iterator[None]:
    """Say what to change where memory runs out in the block."""
    try:
        yield
    except RuntimeError as wrong:
        if not out_of_memory(wrong):
            raise
        recipe = members[0].setup.recipe
        raise RbError(
            f"Memory ran out with {len(members)} seeds of {recipe.micro_batch or recipe.batch_size} images at"
            " once. Use a smaller --stack-seeds or --batch-size, or send each batch through in pieces with"
            " --batch-size N:micro=M."
        ) from wrong


class _Stack:
    """The networks of some trainings as one, whose gradients it computes.

    The parameters and buffers of each network become views of the stacked ones, so that the training's
    optimiser, validation and state read and write the stacked ones.
    """

    def __init__(self, members: Sequence[StackedTraining]) -> None:
        self.members = list(members)
        self.checked = False
        networks = [member.setup.networks for member in members]
        try:
            with _memory(members):
                self.network = _Stacked([one.model for one in networks])
                copies = [one.copy for one in networks]
                self.inner = self.network
                if None not in copies:
                    self.inner = _StackedCopies(cast("list[EvalCopy]", copies))
        except (RuntimeError, TypeError, ValueError) as wrong:
            raise NotStacked(folding.reason(wrong)) from wrong
        self.passes = Passes(self.network)
        if self.inner is not self.network:
            self.passes.watch(self.inner)

    def backward(self, pieces: Sequence[Piece]) -> None:
        """Add the weighted gradients of all pieces, one of each training, to its parameters; set its loss."""
        try:
            with _memory(self.members):
                if not self.checked:
                    self._check(pieces)
                with self.passes:
                    losses, gradients = self._gradients(pieces, self.members[0].setup.networks)
        except (RbError, NotStacked):
            raise
        except Exception as wrong:  # the network's own code may raise anything
            if self.checked:
                raise
            raise NotStacked(folding.reason(wrong)) from wrong
        self.checked = True
        for at, (member, piece, loss) in enumerate(zip(self.members, pieces, losses, strict=True)):
            piece.loss = loss
            for name, weight in member.state.model.named_parameters():
                if gradients.get(name) is not None:
                    own = gradients[name][at]
                    weight.grad = own if weight.grad is None else weight.grad + own
            for name in ("forward", "backward"):
                member.state.passes[name] += self.passes.totals[name] // len(pieces)
        self.passes.totals.update(forward=0, backward=0)

    def _gradients(
        self, pieces: Sequence[Piece], networks: StepNetworks
    ) -> tuple[list[Loss], dict[str, Tensor]]:
        """The loss of each piece, and the stacked gradients by the parameter's name, in the precision of
        `networks`.
        """
        method, weight = pieces[0].method, pieces[0].weight
        images = torch.cat([piece.images for piece in pieces])
        targets = torch.cat([piece.targets for piece in pieces])
        draws = cast(Draws, _JoinedDraws([piece.draws for piece in pieces]))
        self.network.images = len(images)
        self.network.train()
        if isinstance(self.inner, _StackedCopies):
            self.inner.images = len(images)
            self.inner.update()
            inner_result = method.inner_attack(self.inner, images, targets, draws)
        else:
            with networks.precision():
                inner_result = method.inner_attack(self.network, images, targets, draws)
        with networks.precision():
            terms = method.loss(self.network, images, targets, inner_result)
        parts = self._split(terms, len(pieces))
        losses = [part.mean() for part in parts]
        total = torch.stack([loss.value for loss in losses]).sum() * weight
        gradients = torch.autograd.grad(total, list(self.network.weights.values()), allow_unused=True)
        return (
            [loss._replace(value=loss.value.detach()) for loss in losses],
            {name: one for name, one in zip(self.network.weights, gradients, strict=True) if one is not None},
        )

    @staticmethod
    def _split(terms: LossTerms, count: int) -> Iterator[LossTerms]:
        parts = [[None] * count if value is None else value.chunk(count) for value in terms]
        return (LossTerms(*of_one) for of_one in zip(*parts, strict=True))

    def _check(self, pieces: Sequence[Piece]) -> None:
        """Raise NotStacked where the last training alone has another loss, or other gradients. Networks
        compute in float32 meanwhile: in bfloat16 rounding alone makes a tenth of a first step's gradient.
        """
        buffers = {name: value.clone() for name, value in self.network.others.items()}
        networks = [member.setup.networks for member in self.members]
        try:
            value, alone = self._alone(pieces[-1], replace(networks[-1], half=False))
            self._restore(buffers)
            losses, gradients = self._gradients(pieces, replace(networks[0], half=False))
        finally:
            self._restore(buffers)
        apart, length = torch.zeros_like(value), torch.zeros_like(value)
        for name, wanted in zip(self.network.weights, alone, strict=True):
            own = gradients[name][-1] if name in gradients else None
            none = torch.zeros_like(self.network.weights[name][-1])
            wanted, own = (none if one is None else one for one in (wanted, own))
            apart, length = apart + (own - wanted).square().sum(), length + wanted.square().sum()
        same = (losses[-1].value - value).abs() <= _TOLERANCE * value.abs()
        tolerance = _TOLERANCE_OF_ATTACK if networks[-1].half else _TOLERANCE
        same &= apart.sqrt() <= tolerance * length.sqrt()
        if not bool(same) and bool(length.isfinite()):
            name = self.members[0].setup.method.name
            raise NotStacked(f"the stacked networks compute something else than {name} alone")

    def _alone(self, piece: Piece, networks: StepNetworks) -> tuple[Tensor, list[Tensor | None]]:
        """The loss and the gradients of the last training alone."""
        passes = dict(networks.passes.totals)
        loss = loss_of(networks, piece).value
        weights = [networks.model.get_parameter(name) for name in self.network.weights]
        gradients = torch.autograd.grad(loss * piece.weight, weights, allow_unused=True)
        networks.passes.totals.update(passes)
        return loss.detach(), list(gradients)

    def _restore(self, buffers: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in buffers.items():
                self.network.others[name].copy_(value)


class _Stacked(nn.Module):
    """Networks of one architecture: images (S * N, C, H, W) -> logits (S * N, K), S parts for S networks."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.images = 0  # of a batch: what a method sends through must be whole batches
        self.count = len(networks)
        self.network = copy.deepcopy(networks[0])
        self.network._forward_hooks.clear()  # which count the passes of one training
        self.weights = {
            name: value.requires_grad_(True)
            for name, value in self._shared([dict(net.named_parameters()) for net in networks]).items()
            if networks[0].get_parameter(name).requires_grad
        }
        frozen = self._shared(
            [{n: v for n, v in net.named_parameters() if not v.requires_grad} for net in networks]
        )
        self.others = frozen | self._shared([dict(net.named_buffers()) for net in networks])

    @staticmethod
    def _shared(tensors: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """The stacked tensors, of which the given ones become views."""
        stacked = {name: torch.stack([one[name].detach() for one in tensors]) for name in tensors[0]}
        for at, own in enumerate(tensors):
            for name, value in own.items():
                value.data = stacked[name][at]
        return stacked

    def parts(self, images: Tensor) -> Tensor:
        """The images of each network (S, N, C, H, W)."""
        if len(images) != self.images:
            raise NotStacked("the method sends parts of a batch through the network")
        own: Tensor = images.unflatten(0, (self.count, -1))
        return own

    def forward(self, images: Tensor) -> Tensor:
        return self.through(self.network, self.parts(images))

    def through(self, network: nn.Module, parts: Tensor) -> Tensor:
        """The logits (S * N, K) of the parts."""
        call: Callable[..., Any] = torch.func.functional_call
        state = {**self.weights, **self.others}
        logits: Tensor = torch.func.vmap(call, in_dims=(None, 0, 0))(network, state, parts)
        return logits.flatten(0, 1)


class _StackedCopies(_Stacked):
    """Evaluation copies of the networks, in the same way."""

    def __init__(self, copies: Sequence[EvalCopy]) -> None:
        super().__init__([one.network for one in copies])
        self.copies = tuple(copies)
        self.eval()

    def update(self) -> None:
        """Copy the weights of the networks in training."""
        for one in self.copies:
            one.update()

    def forward(self, images: Tensor) -> Tensor:
        (norm,) = self.copies[0]._outer
        inputs: Tensor = norm.inputs(images) if isinstance(norm, Preprocessed) else images
        parts = self.parts(inputs.to(self.copies[0].dtype or inputs.dtype))
        logits: Tensor = self.through(self.network, parts).float()
        return logits


class _JoinedDraws:
    """The draws of several batches, one after another, each of its own seed; see `Draws`."""

    def __init__(self, draws: Sequence[Draws]) -> None:
        self.draws, self.device, self.offset = draws, draws[0].device, draws[0].offset

    def __len__(self) -> int:
        return sum(map(len, self.draws))

    @property
    def examples(self) -> Tensor:
        return torch.cat([one.examples for one in self.draws])

    def child(self, name: str) -> _JoinedDraws:
        return _JoinedDraws([one.child(name) for one in self.draws])

    def on_host(self) -> _JoinedDraws:
        return _JoinedDraws([one.on_host() for one in self.draws])

    def take(self, index: Tensor) -> _JoinedDraws:
        raise NotStacked("the method draws for parts of a batch")

    def bits(self, *how: Any, **more: Any) -> Tensor:
        return torch.cat([one.bits(*how, **more) for one in self.draws])

    def uniform(self, *how: Any, **more: Any) -> Tensor:
        return torch.cat([one.uniform(*how, **more) for one in self.draws])

    def normal(self, *how: Any, **more: Any) -> Tensor:
        return torch.cat([one.normal(*how, **more) for one in self.draws])

    def integers(self, *how: Any, **more: Any) -> Tensor:
        return torch.cat([one.integers(*how, **more) for one in self.draws])

"""Random numbers for the code of other projects, such as a network that adds noise to its input."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rbtools.rng.draws import Draws

_aten = torch.ops.aten
_PASSES = 1 << 31  # passes share the counter with the upper half of an example's number


class ExampleNumbers(TorchDispatchMode):
    """A context in which row i of a batch is example `examples[i]` in its pass number `passes[i]`.

    If the result of a random operation has the same number of consecutive rows for each example, the context
    fills the result row by row: the numbers depend only on (seed, stream, example, pass, operation). Every
    other random operation, NumPy and Python return numbers that depend on the batch; `shared` is then true.
    `kinds` contains the kinds of operations that occurred: "dropout" and "noise". `examples` and `passes` are
    int64 (N,), on the device of the images. Raises ValueError for passes outside [0, 2^31).
    """

    active: ClassVar[list[ExampleNumbers]] = []

    def __init__(self, seed: int, stream: str, examples: Tensor, passes: Tensor | int) -> None:
        super().__init__()
        numbers = torch.as_tensor(passes, device=examples.device).expand_as(examples)
        if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < _PASSES:
            raise ValueError(f"expected passes from 0 to 2^31 - 1, got {int(numbers.max())}")
        self.draws = Draws(seed, stream, examples + (numbers << 32))
        self.operation = 0
        self.shared = False
        self.kinds: set[str] = set()

    def __enter__(self) -> ExampleNumbers:
        self.active.append(self)
        self._before = _states()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.active.pop()
        self.shared |= _states() != self._before

    @contextlib.contextmanager
    def row(self, number: int) -> Iterator[None]:
        """A context in which only this row goes through the model and determines all random numbers."""
        whole, done = self.draws, self.operation
        seed = self._seeds[number]
        self.draws, self.operation = whole.take(torch.tensor([number])), 0
        python, numpy = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(devices=[whole.device] if whole.device.type == "cuda" else []):
                _seed_torch(seed, whole.device)
                np.random.seed(seed)
                random.seed(seed)
                yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            self.draws, self.operation = whole, done

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise torch imports torch.compile, which takes 1.5 s

    @functools.cached_property
    def _seeds(self) -> list[int]:
        """A seed for each row; one call for each row would take longer than a pass of a small network."""
        seeds: list[int] = self.draws.child("all").bits(1)[:, 0].tolist()
        return seeds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded not in func.tags or not torch.is_tensor(_first(result)):
            return result
        fill = _FILLS.get(func.overloadpacket)
        self.kinds.add("dropout" if func.overloadpacket in _DROPOUTS else "noise")
        rows, out = len(self.draws), _first(result)
        each = out.numel() // rows if rows else 0
        if fill is None or (rows > 1 and (out.dim() == 0 or out.shape[0] % rows)):
            self.shared = True
            return result
        if each:
            fill(_Filler(self.draws, self.operation, out, each), _arguments(func, args, kwargs), result)
        self.operation += 1
        return result


class RandomisedModel(nn.Module):
    """A randomised model. With `one_by_one`, every image goes through the model separately."""

    randomised = True

    def __init__(self, network: nn.Module, one_by_one: bool = False) -> None:
        super().__init__()
        self.network, self.one_by_one = network, one_by_one

    def forward(self, images: Tensor) -> Tensor:
        numbers = ExampleNumbers.active[-1] if ExampleNumbers.active else None
        if numbers is None or not self.one_by_one or not len(images):
            logits: Tensor = self.network(images)
            return logits
        parts = []
        for i in range(len(images)):
            with numbers.row(i):
                parts.append(self.network(images[i : i + 1]))
        return torch.cat(parts)


def _seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators of the CPU and of this device; `torch.manual_seed` also records a call stack."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def states(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators of torch, Python and NumPy, which change if numbers are drawn."""
    there = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return *_states(), *(state.numpy().tobytes() for state in (torch.get_rng_state(), *there))


def _states() -> tuple[Any, ...]:
    numpy: Any = np.random.get_state()
    return random.getstate(), numpy[1].tobytes(), numpy[2]


class _Filler:
    """The random numbers of one operation, in the shape of its result."""

    def __init__(self, draws: Draws, operation: int, out: Tensor, each: int) -> None:
        self.draws, self.operation, self.out, self.each = draws, operation, out, each

    def uniform(self) -> Tensor:
        return self.draws.uniform((self.each,), draw=self.operation).view(self.out.shape)

    def normal(self) -> Tensor:
        return self.draws.normal((self.each,), draw=self.operation).view(self.out.shape)

    def integers(self, low: int, high: int) -> Tensor:
        return self.draws.integers(high - low, (self.each,), draw=self.operation).view(self.out.shape) + low


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple | list) and result else result


def _arguments(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    values: dict[str, Any] = {argument.name: argument.default_value for argument in func._schema.arguments}
    values |= {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}
    values |= kwargs
    return values


def _uniform(numbers: _Filler, given: dict[str, Any], result: Any) -> None:
    low, high = given.get("from", 0.0), given.get("to", 1.0)
    result.copy_(numbers.uniform() * (high - low) + low)


def _normal(numbers: _Filler, given: dict[str, Any], result: Any) -> None:
    result.copy_(numbers.normal() * given.get("std", 1.0) + given.get("mean", 0.0))


def _bernoulli(numbers: _Filler, given: dict[str, Any], result: Any) -> None:
    result.copy_(numbers.uniform() < given.get("p", given["self"]))


def _dropout(numbers: _Filler, given: dict[str, Any], result: Any) -> None:
    if given["train"] is False:
        return
    kept = numbers.uniform() >= given["p"]
    result[1].copy_(kept)
    result[0].copy_(
        given["input"] * kept / (1 - given["p"]) if given["p"] < 1 else torch.zeros_like(result[0])
    )


def _exponential(numbers: _Filler, given: dict[str, Any], result: Any) -> None:
    result.copy_(numbers.uniform().neg_().log1p_().neg_() / given["lambd"])


def _integers(numbers: _Filler, given: dict[str, Any], result: Any) -> None:
    result.copy_(numbers.integers(given.get("low", 0), given["high"]))


_DROPOUTS = {_aten.bernoulli, _aten.bernoulli_, _aten.native_dropout}
_FILLS: dict[Any, Callable[[_Filler, dict[str, Any], Any], None]] = {
    _aten.rand: _uniform,
    _aten.rand_like: _uniform,
    _aten.randn: _normal,
    _aten.randn_like: _normal,
    _aten.uniform_: _uniform,
    _aten.normal_: _normal,
    _aten.normal: _normal,
    _aten.bernoulli: _bernoulli,
    _aten.bernoulli_: _bernoulli,
    _aten.native_dropout: _dropout,
    _aten.exponential_: _exponential,
    _aten.randint: _integers,
    _aten.randint_like: _integers,
}

"""Randomised models: whether a model is one, and one whose random numbers belong to the example.

Found by running the model on the same images twice, and on some of them in another batch. A model that
differs in both is randomised; one that only differs in another batch depends on the batch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.rng.foreign import Numbers

SAME = 1e-3  # outputs that differ by less than this share of the logits' range are equal
_FEW = 2  # images of the other batch


@dataclass(frozen=True)
class Randomness:
    """What is random in a model.

    kind: "none", "dropout" or "noise". numbers: "example", they can be those of each example in a batch of
    any size; "one by one", only if every image goes through the model alone; "uncontrolled", not even then:
    a generator of the model's own, say. batch: whether what it gives for an image depends on the others of
    its batch. changes: whether a pass changes its parameters or buffers.
    """

    kind: str = "none"
    numbers: str = "example"
    batch: bool = False
    changes: bool = False

    def __bool__(self) -> bool:
        return self.kind != "none"

    def fields(self) -> dict[str, Any]:
        """All of it, for the store."""
        return asdict(self)


class RandomisedModel(nn.Module):
    """A randomised model; inside `Numbers` its random numbers are those of each example.

    one_by_one: every image goes through it alone.
    """

    def __init__(self, network: nn.Module, one_by_one: bool = False) -> None:
        super().__init__()
        self.network, self.one_by_one = network, one_by_one

    def forward(self, images: Tensor) -> Tensor:
        numbers = Numbers.active[-1] if Numbers.active else None
        if numbers is None or not self.one_by_one:
            logits: Tensor = self.network(images)
            return logits
        parts = []
        for i in range(len(images)):
            with numbers.row(i):
                parts.append(self.network(images[i : i + 1]))
        return torch.cat(parts)


def controlled(model: nn.Module, randomness: Randomness) -> nn.Module:
    """The model as it is evaluated: as it is, or a `RandomisedModel`."""
    return RandomisedModel(model, randomness.numbers != "example") if randomness else model


def randomness_of(model: nn.Module, images: Tensor) -> Randomness:
    """What is random in a model, found by passes of some images (N, C, H, W), two or more."""
    with torch.no_grad():
        state = {name: value.clone() for name, value in model.state_dict().items()}
        first, again = model(images).float(), model(images).float()
        changes = any(not torch.equal(value, state[name]) for name, value in model.state_dict().items())
        if changes:
            model.load_state_dict(state)
        near = SAME * float(first.max() - first.min()) + 1e-6

        def differ(one: Tensor, other: Tensor) -> bool:
            return not float((one - other).abs().max()) <= near  # true for NaN, too

        if not differ(first, again):
            return Randomness(batch=differ(model(images[:_FEW]).float(), first[:_FEW]), changes=changes)
        everyone = torch.arange(len(images), device=images.device)
        some = everyone[:_FEW].flip(0)
        kinds: set[str] = set()
        for numbers in ("example", "one by one"):
            tried = RandomisedModel(model, numbers != "example")
            results, shared = [], False
            for rows in (everyone, some):
                with Numbers(0, "probe", rows, 0) as context:
                    results.append(tried(images[rows]).float())
                kinds |= context.kinds
                shared |= context.shared and numbers == "example"
            if not shared and not differ(results[0][some], results[1]):
                break
        else:
            numbers = "uncontrolled"
        if changes:
            model.load_state_dict(state)
    kind = "dropout" if kinds == {"dropout"} else "noise"
    return Randomness(kind, numbers, _uses_the_batch(model), changes)


def _uses_the_batch(model: nn.Module) -> bool:
    """Whether a BatchNorm is in train mode."""
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training for m in model.modules())

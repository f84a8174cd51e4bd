"""Random numbers of foreign code: they belong to the example, whatever the batch."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rbtools.evaluation.randomised import look
from rbtools.rng.foreign import ExampleNumbers, RandomisedModel
from tests.networks import images_for

OPERATIONS: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {  # mean, standard deviation
    "randn_like": (torch.randn_like, 0, 1),
    "rand": (lambda x: torch.rand(len(x), 3), 0.5, 12**-0.5),
    "rand_like": (torch.rand_like, 0.5, 12**-0.5),
    "normal": (lambda x: torch.normal(torch.zeros_like(x), 2.0), 0, 2),
    "uniform_": (lambda x: torch.empty_like(x).uniform_(-1, 1), 0, 3**-0.5),
    "normal_": (lambda x: torch.empty_like(x).normal_(1, 2), 1, 2),
    "exponential_": (lambda x: torch.empty_like(x).exponential_(2.0), 0.5, 0.5),
    "bernoulli": (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3, 0.21**0.5),
    "randint": (lambda x: torch.randint(2, 7, (len(x), 4)).float(), 4, 2**0.5),
    "dropout": (lambda x: functional.dropout(torch.ones_like(x), 0.3, True), 1, (0.3 / 0.7) ** 0.5),
    "copies of each": (lambda x: torch.randn(3 * len(x), 2).view(len(x), 6), 0, 1),
    "distributions": (lambda x: torch.distributions.Normal(0.0, 1.0).sample(x.shape), 0, 1),
}


def drawn(
    operation: Callable[[Tensor], Tensor], examples: list[int], passes: int = 0, seed: int = 0
) -> Tensor:
    with ExampleNumbers(seed, "test", torch.tensor(examples), passes) as numbers:
        result = operation(torch.zeros(len(examples), 5))
    assert not numbers.shared
    return result.reshape(len(examples), -1)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_each_example_numbers_of_its_own(name: str) -> None:
    operation, mean, deviation = OPERATIONS[name]
    everyone = drawn(operation, [*range(8)])
    assert torch.equal(everyone[[5, 2]], drawn(operation, [5, 2]))
    for other in ({"passes": 1}, {"seed": 1}):
        assert not torch.equal(everyone, drawn(operation, [*range(8)], **other))
    many = drawn(operation, list(range(4000))).flatten()
    assert abs(float(many.mean()) - mean) < 6 * deviation / len(many) ** 0.5
    assert abs(float(many.std()) - deviation) < 0.05 * deviation


def test_what_belongs_to_the_batch_is_noticed_and_left_as_it_is() -> None:
    def shared(operation: Callable[[], object]) -> bool:
        with ExampleNumbers(0, "test", torch.arange(4), 0) as numbers:
            operation()
        return numbers.shared

    assert shared(lambda: torch.randperm(4)) and shared(lambda: torch.rand(1)) and shared(random.random)
    assert shared(lambda: np.random.rand(2)) and not shared(lambda: torch.rand(4, 2))
    torch.manual_seed(3)
    expected = torch.randperm(9)
    torch.manual_seed(3)
    with ExampleNumbers(0, "test", torch.arange(4), 0):
        assert torch.equal(torch.randperm(9), expected)


class Around(nn.Module):
    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.change, self.linear = change, nn.Sequential(nn.Flatten(), nn.Linear(108, 4))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.linear(self.change(images))
        return logits


def one_side(images: Tensor) -> Tensor:
    return torch.roll(images, random.randint(0, 5), 3)


def of_numpy(images: Tensor) -> Tensor:
    return images + torch.from_numpy(np.random.standard_normal(images.shape)).float()


def copies(images: Tensor) -> Tensor:  # copy-major: the rows of an example are apart
    noisy = images.repeat(3, 1, 1, 1)
    return (noisy + torch.randn_like(noisy)).view(3, *images.shape).mean(0)


GENERATOR = np.random.default_rng(0)


def of_its_own(images: Tensor) -> Tensor:
    return images + torch.from_numpy(GENERATOR.standard_normal(images.shape)).float()


@pytest.mark.parametrize(
    ("change", "kind", "numbers"),
    [
        (lambda x: x, "none", "example"),
        (lambda x: x + torch.randn_like(x), "noise", "example"),
        (lambda x: functional.dropout(x, 0.5, True), "dropout", "example"),
        (lambda x: x * torch.rand(1), "noise", "one by one"),
        (one_side, "noise", "one by one"),
        (of_numpy, "noise", "one by one"),
        (copies, "noise", "one by one"),
        (lambda x: torch.roll(x, random.randint(0, 1), 3), "noise", "one by one"),
        (lambda x: torch.roll(x, int(GENERATOR.integers(2)), 3), "noise", "uncontrolled"),
        (of_its_own, "noise", "uncontrolled"),
    ],
)
def test_what_is_random_in_a_model_is_found(
    change: Callable[[Tensor], Tensor], kind: str, numbers: str
) -> None:
    model, images = Around(change).eval(), images_for(8)
    found = look(model, images)
    assert (found.kind, found.numbers, found.batch, found.changes) == (kind, numbers, False, False)
    if found.randomised and numbers != "uncontrolled":
        results = []
        for rows in (torch.arange(8), torch.tensor([6, 1, 3])):
            with torch.no_grad(), ExampleNumbers(0, "test", rows, 2):
                results.append(RandomisedModel(model, numbers != "example")(images[rows]))
        assert torch.allclose(results[0][[6, 1, 3]], results[1], atol=1e-5)


def test_what_depends_on_other_images_is_told_from_noise() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = Around(lambda x: x)
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, images: Tensor) -> Tensor:
            self.seen += 1
            return self.network(images) * self.seen  # type: ignore[no-any-return]

    images = images_for(8)
    norm = nn.Sequential(nn.BatchNorm2d(3), Around(lambda x: x)).train()
    before = norm[0].running_mean.clone()
    found = look(norm, images)
    assert (found.kind, found.batch, found.changes) == ("none", True, True)
    assert torch.equal(norm[0].running_mean, before)
    found = look(Around(lambda x: x - x.mean(0)).eval(), images)
    assert (found.kind, found.batch, found.changes) == ("none", True, False)
    found = look(Counting().eval(), images)
    assert (found.kind, found.batch, found.changes) == ("none", False, True)

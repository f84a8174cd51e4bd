"""ALP and CLP, which penalise the distance between the outputs for an image and for its adversarial image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rbtools.attacks.steps import widen
from rbtools.lazy import Tensor, nn, torch
from rbtools.registry import param
from rbtools.training.base import Adversarial, LossTerms, cross_entropy


@dataclass(frozen=True, kw_only=True)
class Pairing(Adversarial):
    """The loss CE + lambda * ||p(x') - p(x)||^2.

    `classified` is the image at which the cross-entropy is computed, x or x'. The outputs p are
    probabilities, as in PRBench's table 2, or logits (`pair="logits"`). If `distance="l2"` is also set, the
    second term is lambda * ||z(x') - z(x)||, where z are the logits, as in PRBench's code
    (wellzline/PRBenchmark, attack_algorithms.py) on every data set. The point x' maximises the cross-entropy,
    starting at a uniform point.
    """

    inner = "ce"
    start = "uniform"
    classified: ClassVar[str]

    lambda_: float = param(
        1.0,
        "Weight of the distance. PRBench's code uses 0.01 for alp and 0.3 for clp; its paper uses 1, except"
        " on svhn, mnist, tinyimagenet and imagenet50, where it uses the values of the code.",
        name="lambda",
        check="non-negative",
    )
    pair: str = param(
        "softmax",
        "The outputs to pair: probabilities (softmax) as in PRBench's paper, or logits as in PRBench's"
        " code and Kannan et al.",
        choices=("softmax", "logits"),
    )
    distance: str = param(
        "squared",
        "Distance of the two outputs: the squared L2 distance (squared) as in PRBench's paper and Kannan"
        " et al., or the L2 distance (l2) as in PRBench's code.",
        choices=("squared", "l2"),
        optional=True,
    )
    extra_pass: bool = param(
        False,
        "Pass the classified image through the network again, for BatchNorm. PRBench's code does this, but"
        " its paper does not.",
        optional=True,
    )

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Tensor) -> LossTerms:
        if self.extra_pass:
            # PRBench's code computes the logits of the cross-entropy and those of the pair separately, in
            # this order. The values are the same; BatchNorm's running statistics get three batches.
            with torch.no_grad():
                model(images if self.classified == "clean" else inner_result)
            adversarial, clean = model(inner_result), model(images)
        else:
            clean, adversarial = model(images), model(inner_result)
        outputs = [widen(logits) for logits in (clean, adversarial)]
        if self.pair == "softmax":
            outputs = [logits.softmax(dim=1) for logits in outputs]
        difference = outputs[1] - outputs[0]
        if self.distance == "squared":
            distance = difference.square().sum(1)
        else:
            distance = torch.linalg.vector_norm(difference, dim=1)  # its gradient at 0 is 0
        logits = clean if self.classified == "clean" else adversarial
        return LossTerms(cross_entropy(logits, labels) + self.lambda_ * distance, clean, adversarial)


@dataclass(frozen=True, kw_only=True)
class ALP(Pairing):
    """Adversarial logit pairing (Kannan et al. 2018, arXiv:1803.06373). The loss is CE(x') + lambda * ||p(x')
    - p(x)||^2.

    The outputs p are probabilities, as in PRBench's table 2, or logits (`pair="logits"`). PRBench's code
    pairs logits, with `distance="l2"` and lambda 0.01. The point x' maximises the cross-entropy, starting at
    a uniform point.
    """

    name = "alp"
    classified = "adversarial"


@dataclass(frozen=True, kw_only=True)
class CLP(Pairing):
    """Clean logit pairing as in PRBench's table 2, with the loss CE(x) + lambda * ||p(x') - p(x)||^2.

    CLP differs from ALP in that the cross-entropy is computed at the clean image x. In PRBench's code, its
    lambda is 0.3. PRBench pairs an image with its own adversarial image, while Kannan et al. pair two random
    images.
    """

    name = "clp"
    classified = "clean"

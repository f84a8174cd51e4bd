"""MART: adversarial training with more weight on misclassified examples."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.attacks.losses import of_class
from rbtools.attacks.steps import widen
from rbtools.lazy import F, Tensor, nn
from rbtools.registry import param
from rbtools.training.base import Adversarial, LossTerms, cross_entropy, truth


@dataclass(frozen=True, kw_only=True)
class MART(Adversarial):
    """MART (Wang et al. 2020; YisenWang/MART). The loss is BCE(x') + lambda * (1.0000001 - p_y(x)) * KL(p(x)
    || p(x')).

    BCE(x') is CE(x') - log(1.0001 - p_k(x') + 1e-12), where k is the most probable wrong class of x'. With
    `bce="ce"`, as in PRBench's table 2, BCE(x') is replaced by CE(x'). The logarithm in KL is log(p(x') +
    1e-12). The point x' maximises the cross-entropy, starting at x + 0.001 * N(0, 1).
    """

    name = "mart"
    inner = "ce"
    start = "noise"

    lambda_: float = param(
        5.0, "Weight of the divergence.", name="lambda", check="non-negative", elsewhere="beta"
    )
    bce: str = param(
        "bce",
        "The first term of the loss: cross-entropy (ce) as in table 2 of PRBench's paper, or cross-entropy"
        " plus a term for the most probable wrong class (bce) as in PRBench's code.",
        choices=("bce", "ce"),
    )

    def loss(self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: Tensor) -> LossTerms:
        clean, adversarial = model(images), model(inner_result)
        log_p, p_adversarial = F.log_softmax(widen(clean), dim=1), F.softmax(widen(adversarial), dim=1)
        classes = truth(labels)
        values = cross_entropy(adversarial, labels)
        if self.bce == "bce":
            p_wrong = p_adversarial.scatter(1, classes[:, None], -1).amax(1)
            values = values - (1.0001 - p_wrong + 1e-12).log()
        kl = (log_p.exp() * (log_p - (p_adversarial + 1e-12).log())).sum(1)
        values = values + self.lambda_ * (1.0000001 - of_class(log_p, classes).exp()) * kl
        return LossTerms(values, clean, adversarial)

"""Chen and Lee's data filtering: if the attack does not increase the loss, the model is trained on x."""

from __future__ import annotations

from rbtools.attacks.active_examples import uploaded
from rbtools.lazy import Tensor, nn, torch
from rbtools.rng.draws import Draws
from rbtools.training.base import Adversarial, LossTerms, Method, cross_entropy, mode


class ChenLee(Method[tuple[Tensor, Tensor, Tensor]]):
    """A method with a multi-step attack, combined with Chen and Lee's filter, as in PRBench.

    After `warm_steps` steps of the attack, the cross-entropy at x' is compared with the cross-entropy at x,
    in the mode of the attack. With `rule="batch"`, a batch whose mean is lower at x' is not attacked further,
    and its loss is only CE(x). PRBench's code does this for TRADES (wellzline/PRBenchmark at 0517bae,
    trades_loss_efficient_2, whose m is `warm_steps - 1`). With `rule="example"`, this is decided for each
    example. The method must then attack in eval mode, because only parts of the batch go through the network.
    """

    def __init__(self, method: Adversarial, warm_steps: int, rule: str = "batch") -> None:
        self.method, self.warm_steps, self.rule = method, warm_steps, rule
        self.name, self.inner, self.inner_mode = method.name, method.inner, method.inner_mode  # type: ignore[misc]

    @property
    def of_whole_batches(self) -> bool:
        return self.rule == "batch"

    def inner_attack(
        self, model: nn.Module, images: Tensor, labels: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the training images, whether each example is attacked further (N,), on the CPU, and the
        logits at x' after the first `warm_steps` steps."""
        method = self.method
        with torch.no_grad(), mode(model, train=not self.solves_in_eval):
            clean = model(images)
            objective = method.objective(model, images, labels, clean)
            warm = method.climb(model, images, method.begin(images, draws), objective, self.warm_steps)
            reached = model(warm)
            raised = cross_entropy(reached, labels) - cross_entropy(clean, labels)
            if self.rule == "batch":
                raised = raised.mean().expand(len(images))
            stay, trained = (raised >= 0).cpu(), images.clone()
            if stay.any():
                rows = uploaded(stay.nonzero()[:, 0], images.device)
                remaining = method.objective(model, images[rows], labels[rows], clean[rows])
                left = method.attack_steps - self.warm_steps
                trained[rows] = method.climb(model, images[rows], warm[rows], remaining, left)
        return trained, stay, reached

    def loss(
        self, model: nn.Module, images: Tensor, labels: Tensor, inner_result: tuple[Tensor, Tensor, Tensor]
    ) -> LossTerms:
        trained, stay, reached = inner_result
        if not stay.any():
            logits = model(images)
            return LossTerms(cross_entropy(logits, labels), logits, reached)
        terms = self.method.loss(model, images, labels, trained)
        stay = uploaded(stay, images.device)
        # Filtered examples are trained on x, so its logits serve as adversarial ones if there are no others.
        plain = terms.adversarial if terms.clean is None else terms.clean
        assert plain is not None
        values = torch.where(stay, terms.values, cross_entropy(plain, labels).to(terms.values))
        adversarial = terms.adversarial
        if adversarial is not None:
            adversarial = torch.where(stay[:, None], adversarial, reached.to(adversarial))
        return LossTerms(values, terms.clean, adversarial)

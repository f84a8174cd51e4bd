"""A fast copy of the network in training, for its inner attack: the same function in eval mode.
evaluation/fast_model.py makes such a copy of constant weights; here they change with every step, so the copy
is made once and its weights are updated before each attack.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rbtools.models import folding
from rbtools.models.normalize import Preprocessed


class EvalCopy(nn.Module):
    """BatchNorm folded into the convolution before it, channels last, in float32 or bfloat16.

    Images float32 (N, C, H, W) in [0, 1] -> logits (N, K). Normalisation stays in float32, because bfloat16
    would lose a step of 1/255. Call `update` after each step of the training.
    """

    def __init__(self, model: nn.Module, network: nn.Module, folded: dict[str, str], *, bf16: bool) -> None:
        super().__init__()
        own = model.network if isinstance(model, Preprocessed) else model
        # In a dict and a tuple, so that they do not become submodules of this one.
        self._live = dict(own.named_modules())
        self._outer = (model,)
        self._folded = folded
        self.dtype = torch.bfloat16 if bf16 else None
        self.network = network
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        (norm,) = self._outer
        inputs = norm.inputs(images) if isinstance(norm, Preprocessed) else images
        inputs = inputs.to(self.dtype or inputs.dtype, memory_format=torch.channels_last)
        logits: Tensor = self.network(inputs)
        return logits.float()

    @property
    def folds(self) -> bool:
        """Whether any BatchNorm is folded."""
        return bool(self._folded)

    @torch.no_grad()
    def update(self) -> None:
        """Copy the weights of the network in training."""
        for name, module in self.network.named_modules():
            source = self._live.get(name)
            if source is None:
                continue
            if name in self._folded:
                norm = self._live[self._folded[name]]
                weight, bias = folding.merged(source, norm, scale_first=True)
                module.weight.copy_(weight)
                module.bias.copy_(bias)
                continue
            own = {**module._parameters, **module._buffers}
            for key, value in own.items():
                theirs = getattr(source, key, None)
                if value is not None and theirs is not None:
                    value.copy_(theirs)


def of(model: nn.Module, shape: tuple[int, int, int], *, bf16: bool) -> EvalCopy | None:
    """The evaluation copy of a model; None for one without parameters.

    Raises ValueError if the copy gives other logits, and any error of tracing the network.
    """
    own = model.network if isinstance(model, Preprocessed) else model
    parameter = next(own.parameters(), None)
    if parameter is None:
        return None
    before = [(module, module.training) for module in model.modules()]
    random = torch.Generator().manual_seed(0)
    probe = torch.rand(2, *shape, generator=random).to(parameter.device)
    try:
        with torch.no_grad():
            model.eval()
            wanted = model(probe)
            network, folded = folding.fold(own)
            plain = EvalCopy(model, network, folded, bf16=False)
            plain.update()
            folding.check_same(wanted, plain(probe))
    finally:
        for module, training in before:
            module.training = training
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return EvalCopy(model, network.bfloat16() if bf16 else network, folded, bf16=bf16)

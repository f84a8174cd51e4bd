"""Own networks in wrappers and with lazy layers, and files with losses and metrics beside the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from rbtools.errors import RbError
from rbtools.models import checkpoint


class Net(nn.Module):
    def __init__(self, layers: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), *(nn.Linear(12, 12) for _ in range(layers)))

    def forward(self, x: torch.Tensor) -> Any:
        return self.net(x)


class Holder(nn.Module):
    """A wrapper without a forward of its own."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


class Ema(Holder):
    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)


MAKERS = {
    "plain": Net,
    "parallel": lambda: nn.DataParallel(Net()),
    "compiled": lambda: torch.compile(Net()),
    "averaged": lambda: AveragedModel(Net()),
    "held": lambda: Holder(Net()),
    "ema": lambda: Ema(Net()),
    "large": lambda: Ema(Net(2)),
    "lazy": lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(12)),
}
BESIDE = {"criterion.weight": torch.ones(12), "metric.total": torch.tensor(3), "val_acc.tp": torch.ones(2)}


def load(content: Any, maker: str) -> tuple[nn.Module, dict[str, Any]]:
    Path("makers.py").write_text("from tests.models.test_wrapped import MAKERS\nglobals().update(MAKERS)\n")
    torch.save(content, "m.pt")
    arch = {"space": "python", "name": f"makers:{maker}", "normalize": "none"}
    model, _, facts = checkpoint.load("m.pt", arch, classes=12, shape=(3, 2, 2), allow_code=True)
    return model, facts


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where it imports its compiler
@pytest.mark.parametrize("prefix", ["", "module.", "model.", "clf."])
@pytest.mark.parametrize("maker", [name for name in MAKERS if name not in ("large", "lazy")])
@pytest.mark.slow
def test_weights_come_into_the_module_inside_and_what_is_beside_is_said(maker: str, prefix: str) -> None:
    net, images = Net(), torch.rand(4, 3, 2, 2)
    state = {prefix + key: value for key, value in net.state_dict().items()}
    model, facts = load({"state_dict": {**state, **(BESIDE if prefix else {})}}, maker)
    assert torch.equal(model(images), net(images))
    said = ["criterion.weight, metric.total, val_acc.tp are in the file beside the network: left out"]
    assert facts.get("warnings", []) == (said if prefix else [])


def test_a_misfit_names_tensors_as_the_file_does_and_two_networks_are_not_guessed_between() -> None:
    state = {f"student.{key}": value for key, value in Net().state_dict().items()}
    with pytest.raises(RbError, match=r"missing: student\.net\.2\.weight, student\.net\.2\.bias\. "):
        load(state, "large")
    with pytest.raises(RbError, match="does not fit Net"):
        load({**state, **{f"other.{key}": value for key, value in Net().state_dict().items()}}, "plain")


def test_lazy_layers_get_their_sizes_before_the_weights() -> None:
    net, images = Net().net, torch.rand(4, 3, 2, 2)
    assert torch.equal(load(net.state_dict(), "lazy")[0](images), net(images))

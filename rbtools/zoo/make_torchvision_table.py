"""Write `zoo/torchvision.json` with the sizes of torchvision's networks.

Run `python -m rbtools.zoo.make_torchvision_table > rbtools/zoo/torchvision.json`.
"""

from __future__ import annotations

import bisect
import json
import sys
import warnings
from typing import Any

import torch
from torch import nn

from rbtools.models.meta import meta_init, multiply_adds, parameters
from rbtools.models.torchvision_import import torchvision
from rbtools.zoo import by_digest

SIDES = (32, 64, 224)  # side lengths of images, in pixels, for which the table has multiply-adds
NATIVE, LARGE = 224, 256


def names() -> list[str]:
    return torchvision.models.list_models(module=torchvision.models)


def network(name: str, classes: int = 1000, **options: object) -> nn.Module:
    """Returns the network in eval mode with its parameters on the meta device."""
    with warnings.catch_warnings(), meta_init():
        warnings.simplefilter("ignore")
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    return model.eval()


def entry(name: str) -> dict[str, Any]:
    """Returns the row of one network, with the fields of `rbtools.zoo.external.table`."""
    whole = network(name)
    auxiliary = any(key.startswith(("aux", "AuxLogits")) for key in whole.state_dict())
    options = {"aux_logits": False} if auxiliary else {}
    first, second = (network(name, classes, **options).to("meta") for classes in (10, 20))
    state = first.state_dict()
    head, stem = _ends(first, second)
    smallest = bisect.bisect_left(range(NATIVE), True, lo=1, key=lambda side: _takes(first, side))
    fixed = 0 if _takes(first, LARGE) else NATIVE
    sides = (fixed,) if fixed else tuple(side for side in SIDES if _takes(first, side))
    return {
        "params": _line(parameters(first), parameters(second)),
        "per_channel": state[stem][:, 0].numel(),
        "macs": {
            str(side): _line(*(multiply_adds(one, _images(side)) for one in (first, second)))
            for side in sides
        },
        "smallest": fixed or smallest,
        "fixed": fixed,
        "auxiliary": auxiliary,
        "head": head,
        "stem": stem,
        "digest": by_digest.digest(state, head, stem),
    }


def _line(at_10: int, at_20: int) -> list[int]:
    each = (at_20 - at_10) // 10
    return [at_10 - 10 * each, each]


def _ends(first: nn.Module, second: nn.Module) -> tuple[str, str]:
    """Returns the names of the classifier's weights and of the first convolution's weights."""
    state, other = first.state_dict(), second.state_dict()
    (head,) = (k for k, v in state.items() if v.shape != other[k].shape and k.endswith("weight"))
    stem = next(k for k, v in state.items() if v.ndim == 4 and v.shape[1] == 3)
    return head, stem


def _images(side: int) -> torch.Tensor:
    return torch.empty(2, 3, side, side, device="meta")


def _takes(model: nn.Module, side: int) -> bool:
    try:
        with torch.no_grad():
            model(_images(side))
    except (RuntimeError, ValueError, AssertionError):
        return False
    return True


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(entry(name), separators=(',', ':'))}" for name in names())
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")

"""torchvision's networks, recognised by a digest of all their names and shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from rbtools.models.families import Inferred, head_key
from rbtools.zoo import external

if TYPE_CHECKING:
    from torch import Tensor

LEFT_OUT = ("num_batches_tracked",)  # may be missing from a file
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def digest(state: Mapping[str, Tensor], head: str, stem: str) -> str:
    """A digest of names and shapes that ignores the numbers of classes and image channels."""
    ends = {head, head.removesuffix("weight") + "bias"}
    lines = []
    for key in sorted(state):
        if key.endswith(LEFT_OUT) or key.startswith(AUXILIARY):
            continue
        shape: list[Any] = list(state[key].shape)
        if key in ends and shape:
            shape[0] = "K"
        if key == stem and len(shape) > 1:
            shape[1] = "C"
        lines.append(f"{key} {shape}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


@cache
def _by_digest() -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Name by digest, and the pairs of head and stem that there are."""
    table = external.table()
    ends = dict.fromkeys((about["head"], about["stem"]) for about in table.values())
    return {about["digest"]: name for name, about in table.items()}, list(ends)


def infer(state: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Inferred | None:
    """The network of torchvision that has exactly these names and shapes, its head under any usual name."""
    names, ends = _by_digest()
    own = head_key(state)
    for head, stem in ends:
        if stem not in state or (head not in state and own is None):
            continue
        renamed = state if head in state else _with_head(state, str(own), head)
        name = names.get(digest(renamed, head, stem))
        if name is not None:
            arch = {"space": "torchvision", "name": name}
            return Inferred(arch, renamed[head].shape[0], state[stem].shape[1])
    return None


def _with_head(state: Mapping[str, Tensor], own: str, head: str) -> dict[str, Tensor]:
    """The state with its last layer called as torchvision calls it."""
    names = {
        own.removesuffix("weight") + end: head.removesuffix("weight") + end for end in ("weight", "bias")
    }
    return {names.get(key, key): value for key, value in state.items()}

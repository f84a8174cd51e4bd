"""Networks of torchvision and timm, recognised by a digest of all their names and shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.models.families import Inferred, State, head_key, noted_names
from rbtools.zoo import external

LEFT_OUT = ("num_batches_tracked",)  # a tensor that may be missing from a file
AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def digest(state: State, head: str, stem: str) -> str:
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


def torchvision(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """The network of torchvision that has exactly these names and shapes, its head under any usual name."""
    table = external.table()
    names = {about["digest"]: name for name, about in table.items()}
    own = head_key(state)
    for head, stem in dict.fromkeys((about["head"], about["stem"]) for about in table.values()):
        if stem not in state or (head not in state and own is None):
            continue
        renamed = state
        if head not in state:
            before, after = (key.removesuffix("weight") for key in (str(own), head))
            ends = {before + end: after + end for end in ("weight", "bias")}
            renamed = {ends.get(key, key): value for key, value in state.items()}
        name = names.get(digest(renamed, head, stem))
        if name is not None:
            arch = {"space": "torchvision", "name": name}
            return Inferred(arch, renamed[head].shape[0], state[stem].shape[1])
    return None


def timm(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """The network of timm that has exactly these names and shapes. Raises RbError where several have.

    Some names of timm have the same tensors and another function: pooling that blurs, TensorFlow's padding
    and epsilon, another GELU. Accuracies hardly distinguish them, so the file's own options decide, else the
    user.
    """
    table = external.timm_table()
    for head, stem in dict.fromkeys((about["head"], about["stem"]) for about in table.values()):
        if stem not in state or head not in state or state[stem].ndim < 2 or not state[head].ndim:
            continue
        about = table.get(digest(state, head, stem))
        if about is None or (about["head"], about["stem"]) != (head, stem):
            continue
        names = about["names"]
        noted = [name for name in noted_names(metadata) if name in names]
        if len(set(noted)) == 1:
            names = noted[:1]
        if len(names) > 1:
            named = " or ".join(f"--arch timm:{name}" for name in names)
            raise RbError(
                f"The checkpoint has the names and shapes of {len(names)} networks of timm, which differ in"
                f" padding, pooling or activation. Say which it is: {named}."
            )
        return Inferred({"space": "timm", "name": names[0]}, state[head].shape[0], state[stem].shape[1])
    return None

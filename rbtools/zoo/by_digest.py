"""Networks of torchvision and timm, recognised by a digest of all their names and shapes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.models.families import Inferred, State, head_key, noted_names
from rbtools.models.tensor_names import OPTIONAL
from rbtools.zoo import external

AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")


def digest(state: State, head: str, stem: str) -> str:
    """Returns a digest of tensor names and shapes that ignores the numbers of classes and image channels."""
    ends = {head, head.removesuffix("weight") + "bias"}
    lines = []
    for key in sorted(state):
        if key.endswith(OPTIONAL) or key.startswith(AUXILIARY):
            continue
        shape: list[Any] = list(state[key].shape)
        if key in ends and shape:
            shape[0] = "K"
        if key == stem and len(shape) > 1:
            shape[1] = "C"
        lines.append(f"{key} {shape}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:24]


def torchvision(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """Returns torchvision's network with these names and shapes. The last layer may have any usual name."""
    table = {about["digest"]: {**about, "names": [name]} for name, about in external.table().items()}
    return _listed("torchvision", table, state, metadata)


def timm(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """Returns timm's network with these names and shapes. Raises RbError if several networks match.

    Some networks with the same tensors compute different functions, with blur pooling, TensorFlow's padding
    and epsilon, or another GELU. Accuracies hardly distinguish them, so the file's options or the user must
    decide.
    """
    return _listed("timm", external.timm_table(), state, metadata)


def _listed(
    space: str, table: Mapping[str, Mapping[str, Any]], state: State, metadata: Mapping[str, Any]
) -> Inferred | None:
    """Returns the network from a table that maps digests to rows with `head`, `stem` and `names`."""
    own = (head_key(state) or "").removesuffix("weight")
    for head, stem in dict.fromkeys((about["head"], about["stem"]) for about in table.values()):
        renamed = state
        if head not in state:
            ends = {own + end: head.removesuffix("weight") + end for end in ("weight", "bias")}
            renamed = {ends.get(key, key): value for key, value in state.items()}
        if stem not in state or head not in renamed or state[stem].ndim < 2 or not renamed[head].ndim:
            continue
        about = table.get(digest(renamed, head, stem))
        if about is None or (about["head"], about["stem"]) != (head, stem):
            continue
        noted = {name for name in noted_names(metadata) if name in about["names"]}
        names = list(noted) if len(noted) == 1 else about["names"]
        if len(names) > 1:
            named = " or ".join(f"--arch {space}:{name}" for name in names)
            raise RbError(
                f"The checkpoint has the names and shapes of {len(names)} networks of {space}, which differ"
                f" in padding, pooling or activation. Name the right one: {named}."
            )
        return Inferred({"space": space, "name": names[0]}, renamed[head].shape[0], state[stem].shape[1])
    return None

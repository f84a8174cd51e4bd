"""timm's networks, recognised by a digest of all their names and shapes (`spaces/timm.json`).

Some names of timm have the same tensors and another function: pooling that blurs, TensorFlow's padding and
epsilon, another GELU. BatchNorm's statistics do not distinguish them reliably (a padding that is shifted by a
pixel changes them less than other images do), so the file's own options decide, else the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.models.families import Inferred, State, noted_names
from rbtools.zoo import external
from rbtools.zoo.torchvision_family import digest


def infer(state: State, metadata: Mapping[str, Any]) -> Inferred | None:
    """The network of timm that has exactly these names and shapes. Raises RbError where several
    have, and the file does not name one of them.
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

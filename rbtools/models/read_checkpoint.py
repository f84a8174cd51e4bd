"""Reads weights files of all supported layouts into a `Checkpoint`, without running code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from rbtools.errors import RbError, shown
from rbtools.models import published, tensor_names, unpack, weights_file
from rbtools.models.families import Ambiguous, Inferred, infer
from rbtools.models.pickle_objects import Stub, UnusualTensor
from rbtools.models.unpickle import SHARED, SMALL
from rbtools.registry import hooks

_PRUNED, _MASK = "_orig", "_mask"  # suffixes of names from torch.nn.utils.prune
LONGEST_NAME = 1000  # characters in a tensor's name; names in networks have less than 100


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of the bare network in a weights file, and the metadata of the file.

    `mean` and `std` have shape (C,) and are the normalisation in the file, for images in [0, 1]. `origin`
    contains the keys that lead to the weights, the removed prefix, and the tensors that do not belong to the
    network. `inside` is the prefix of all tensor names in a network that is a wrapper. `saved` maps names in
    the file to tensors, also those of the normalisation.
    """

    path: Path
    state: dict[str, Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)
    mean: Tensor | None = None
    std: Tensor | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Tensor] = field(default_factory=dict)
    inside: str = ""

    @cached_property
    def seen(self) -> list[Inferred]:
        """Returns the networks that may have these tensors: none, one, or several NAS-Bench-201 cells."""
        try:
            return [infer(self.state, self.metadata)]
        except Ambiguous as several:
            return several.candidates
        except RbError:
            return []

    def in_file(self, name: str) -> str:
        return self.origin.get("prefix", "") + name.removeprefix(self.inside)


def read(path: str | Path, member: str | None = None) -> Checkpoint:
    """Read a .pt, .pth, .pth.tar, .ckpt or .safetensors file. The content shows the format.

    `member` selects one of several sets of weights: a key of the nested content ("best", "ema"), or a run of
    NAS-Bench-201's archives ("cifar10", "cifar10/777"). Raises RbError if the file is missing, empty or
    truncated, if it is not a weights file or has no weights, or if it cannot be loaded without running code.
    """
    path = Path(path)
    raw, metadata, kind = weights_file.read(path)
    if not isinstance(raw, Mapping):
        what = "a single tensor" if isinstance(raw, Tensor) else f"a {type(raw).__name__}"
        if isinstance(raw, Stub) or (isinstance(raw, type) and issubclass(raw, Stub)):
            what = f"the Python object {shown(raw.name)}, whose class could run code and is not loaded"
        raise RbError(
            f"The checkpoint {path} contains {what}. Expected a state dict (names and tensors). Save one in"
            " the program that wrote the file: torch.save(model.state_dict(), FILE)."
        )
    run = None
    if published.is_published(raw):
        raw, member = published.run_of(raw, member, path), None
        run = raw["run"]
    weights, nesting, others = unpack.unwrapped(raw, path, metadata, member)
    for key, value in weights.items():
        _refuse_unusual(str(key), value, path)
    state = {tensor_names.modern(str(k)): v.detach() for k, v in weights.items() if isinstance(v, Tensor)}
    _refuse_much_of_little(state, path)
    state = _without_masks(state)
    saved = dict(state)
    mean, std = unpack.take_normalisation(state, path, metadata)
    prefix, beside = unpack.strip(state)
    origin: dict[str, Any] = {"format": kind, "nesting": nesting, "prefix": prefix}
    if beside:
        origin["left_out"] = counted(beside)
    if others:
        origin["others"] = others
    if run is not None:
        origin["run"] = run
    for rename in hooks("tensor-names"):
        state = rename(state)
    return Checkpoint(path, state, metadata, mean, std, origin, saved)


def counted(names: Sequence[str]) -> str:
    """Lists the first tensor names for a message, and the total number."""
    some = ", ".join(shown(name, 160) for name in names[:3])
    return some if len(names) <= 3 else f"{some}, ... ({len(names)} in all)"


def _without_masks(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Multiplies the pruned weights of torch.nn.utils.prune: `NAME_orig` times `NAME_mask`."""
    state = dict(state)
    for name in [key.removesuffix(_MASK) for key in state if key.endswith(_MASK)]:
        weights, mask = state.get(f"{name}{_PRUNED}"), state[f"{name}{_MASK}"]
        if name not in state and weights is not None and weights.shape == mask.shape:
            state[name] = weights * mask
            del state[f"{name}{_PRUNED}"], state[f"{name}{_MASK}"]
    return state


def _refuse_much_of_little(state: Mapping[str, Tensor], path: Path) -> None:
    """Raise RbError if tensors that share or expand a few bytes need much more memory than the file."""
    storages = [tensor.untyped_storage() for tensor in state.values()]
    there = sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())
    claimed = sum(tensor.numel() * tensor.element_size() for tensor in state.values())
    if claimed > SHARED * there + SMALL:
        raise RbError(
            f"The checkpoint {path} has {len(state)} tensors of {claimed} bytes, but only {there} bytes of"
            " data: tensors are shared or expanded. Clone them (.clone()) in the program that wrote the file."
        )


def _refuse_unusual(key: str, value: object, path: Path) -> None:
    """Raise RbError for tensors that are not dense, and for names that are too long to search quickly."""
    if not isinstance(value, (Tensor, UnusualTensor)):
        return
    if len(key) > LONGEST_NAME:
        raise RbError(
            f"The checkpoint {path} has a tensor with a name of {len(key)} characters, '{shown(key)}'."
            f" Expected at most {LONGEST_NAME}."
        )
    kind = value.kind if isinstance(value, UnusualTensor) else "complex" if value.is_complex() else None
    if kind is not None:
        raise RbError(
            f"The checkpoint {path} has the tensor '{shown(key)}', which is {kind}. Expected dense tensors of"
            " real numbers: convert it in the program that wrote the file."
        )

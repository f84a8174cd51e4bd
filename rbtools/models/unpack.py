"""From what a training script saved to a bare state dict: nesting, prefixes, normaliser buffers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rbtools.errors import RbError, near
from rbtools.models.normalize import per_channel

# Where training scripts put the weights, the likelier one first.
WRAPPERS = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "model_state",
    "ema",
    "model_ema",
    "ema_state_dict",
    "state_dict_ema",
    "best",
    "last",
)
PREFIXES = (
    "module.",
    "model.",
    "_orig_mod.",
    "network.",
    "net.",
    "_model.",
    "base_model.",
    "backbone.",
    "student.",
    "1.",
    "0.",
)
# Second copies of the network in one flat state dict: MadryLab's attacker, averaged weights.
COPIES = ("attacker.", "ema.", "ema_model.", "model_ema.", "teacher.")
MOST_CHANNELS = 4  # of an image: what is longer belongs to a layer
MEANS, STDS = ("mean", "mu", "new_mean"), ("std", "sigma", "new_std")


class Unwrapped(NamedTuple):
    """The mapping that holds the tensors, the keys that lead to it, and other keys with weights."""

    weights: Mapping[Any, Any]
    nesting: list[str]
    others: list[str]


def unwrapped(
    raw: Mapping[Any, Any], path: object, metadata: dict[str, Any], member: str | None = None
) -> Unwrapped:
    """Find the state dict; plain values on the way join `metadata`.

    `member` is the key of the wanted weights where a file holds several ("best", "ema"). Raises RbError
    where there are none, or none of that name.
    """
    nesting: list[str] = []
    others: list[str] = []
    while True:
        metadata.update({str(key): value for key, value in map(_opened, raw.items()) if _is_plain(value)})
        holders = [key for key in raw if _holds_tensors(raw[key]) and "optim" not in str(key).lower()]
        inner = [key for key in WRAPPERS if key in holders]
        if member is not None and member in map(str, holders):
            inner, member = [key for key in holders if str(key) == member], None
        elif not inner and not any(isinstance(value, Tensor) for value in raw.values()):
            if len(holders) != 1:
                raise _none_found(raw, path, holders)
            inner = holders
        if not inner:
            if member is not None:
                raise _no_member(member, path, [*nesting, *others])
            return Unwrapped(raw, nesting, others)
        nesting.append(str(inner[0]))
        others += [str(key) for key in holders if key != inner[0]]
        raw = raw[inner[0]]


def _opened(item: tuple[Any, Any]) -> tuple[Any, Any]:
    """A training script's options as a plain mapping."""
    key, value = item
    return key, vars(value) if isinstance(value, argparse.Namespace) else value


def _none_found(raw: Mapping[Any, Any], path: object, holders: Sequence[Any]) -> RbError:
    if holders:
        listed = ", ".join(map(str, holders[:8])) + (", ..." if len(holders) > 8 else "")
        return RbError(
            f"The checkpoint {path} holds {len(holders)} sets of weights: {listed}."
            " Say which one is meant with --member."
        )
    listed = ", ".join(f"'{key}'" for key in list(raw)[:8]) or "nothing"
    return RbError(
        f"The checkpoint {path} has no weights where they are looked for: it holds {listed}."
        f" Expected a state dict, bare or under one of: {', '.join(WRAPPERS)}."
    )


def _no_member(member: str, path: object, others: list[str]) -> RbError:
    there = f" It holds: {', '.join(others)}." if others else " It holds one set of weights alone."
    return RbError(f"The checkpoint {path} has no weights called '{member}'.{near(member, others)}{there}")


def _holds_tensors(value: Any, depth: int = 4) -> bool:
    if not isinstance(value, Mapping):
        return False
    if any(isinstance(item, Tensor) for item in value.values()):
        return True
    return depth > 0 and any(_holds_tensors(item, depth - 1) for item in value.values())


def _is_plain(value: Any, depth: int = 4) -> bool:
    """Whether a value could stand in JSON: what a training script noted, and no optimiser state."""
    if isinstance(value, (str, int, float)) or value is None:
        return not isinstance(value, float) or math.isfinite(value)
    if depth and isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item, depth - 1) for key, item in value.items())
    return (
        bool(depth) and isinstance(value, (list, tuple)) and all(_is_plain(item, depth - 1) for item in value)
    )


def take_normalisation(
    state: dict[str, Tensor], path: object, metadata: Mapping[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Move a normaliser's buffers out of the state; several are accepted where they are equal.

    Without buffers, plain numbers called mean and std beside the weights will do. Raises RbError where
    several differ.
    """
    pairs = []
    for key in list(state):
        parent, dot, leaf = key.rpartition(".")
        partner = next((parent + dot + std for std in STDS if parent + dot + std in state), None)
        if leaf in MEANS and partner and max(state[key].numel(), state[partner].numel()) <= MOST_CHANNELS:
            pairs.append(torch.broadcast_tensors(*(per_channel(state.pop(name)) for name in (key, partner))))
    if not pairs:
        pairs = _noted(metadata)
    if not pairs:
        return None, None
    mean, std = pairs[0]
    if any(not torch.equal(mean, other) or not torch.equal(std, spread) for other, spread in pairs):
        raise RbError(f"The checkpoint {path} holds {len(pairs)} different normalisations. Keep one of them.")
    # On the scale of pixels from 0 to 255, (255 x - mean) / std is (x - mean/255) / (std/255).
    scale = 255.0 if max(mean.abs().max(), std.abs().max()) > 2 else 1.0
    return mean / scale, std / scale


def _noted(metadata: Mapping[str, Any]) -> list[Any]:
    """Normalisations among the notes: mean and std, bare or inside `normalize` or `normalization`."""
    places = [metadata, *(metadata.get(name) for name in ("normalize", "normalization"))]
    found = []
    for place in places:
        pair: list[Any] = [place.get(name) for name in ("mean", "std")] if isinstance(place, Mapping) else []
        if pair and all(_are_numbers(values) for values in pair):
            found.append(torch.broadcast_tensors(*map(per_channel, pair)))
    return found


def _are_numbers(values: Any) -> bool:
    return (
        isinstance(values, (list, tuple))
        and 0 < len(values) <= MOST_CHANNELS
        and all(isinstance(value, (int, float)) for value in values)
    )


def strip(state: dict[str, Tensor]) -> str:
    """Take off, in place, the prefixes that all keys share, repeatedly; return them."""
    taken = ""
    while True:
        state.pop("n_averaged", None)  # torch.optim.swa_utils.AveragedModel counts its updates
        own = next((p for p in ("model.", "net.", "network.") if any(k.startswith(p) for k in state)), None)
        if own and all(key.startswith((own, *COPIES)) for key in state):
            for key in [key for key in state if not key.startswith(own)]:
                del state[key]
        prefix = next((p for p in PREFIXES if state and all(key.startswith(p) for key in state)), None)
        if prefix is None:
            return taken
        taken += prefix
        renamed = {key.removeprefix(prefix): value for key, value in state.items()}
        state.clear()
        state.update(renamed)

"""Extracts a bare state dict from a file: removes nesting, prefixes and normaliser buffers."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rbtools.errors import RbError, near, shown
from rbtools.models.normalize import per_channel
from rbtools.models.pickle_objects import UnusualTensor

# Keys under which training scripts store the weights, the likelier ones first.
WRAPPERS = (
    *("state_dict", "model_state_dict", "model", "net", "network", "model_state"),
    *("ema", "model_ema", "ema_state_dict", "state_dict_ema", "best", "last"),
)
PREFIXES = (
    *("module.", "model.", "_orig_mod.", "network.", "net.", "_model.", "base_model."),
    *("backbone.", "student.", "timm_model.", "1.", "0."),
)
# Second copies of the network in one flat state dict: MadryLab's attacker, averaged weights.
COPIES = ("attacker.", "ema.", "ema_model.", "model_ema.", "teacher.")
# Losses and metrics in the state dict of a Lightning module, beside the network: the first word of their
# names, and the last word in the names of torchmetrics' counters.
TRAINED_WITH = frozenset(
    "criterion criteria loss losses objective metric metrics accuracy auroc f1 ece confmat confusion".split()
)
WEIGHTS_OF_LOSSES = re.compile("class_weight|pos_weight")
COUNTED = ("tp", "fp", "tn", "fn", "total", "correct", "confmat", "mean_value", "sum_value")
OPTIMISER = {"state", "param_groups"}  # keys of an optimiser's state in torch
Numbers = Tensor | Sequence[float]
MOST_CHANNELS = 4  # the most channels of an image; a longer mean belongs to a layer
DEEPEST = 8  # levels of nested mappings above the weights
MEANS, STDS = ("mean", "mu", "new_mean"), ("std", "sigma", "new_std")


def unwrapped(
    raw: Mapping[Any, Any], path: object, metadata: dict[str, Any], member: str | None
) -> tuple[Mapping[Any, Any], list[str], list[str]]:
    """Find the state dict, and add plain values on the path to this dict to `metadata`.

    Returns the mapping that contains the tensors, the keys that lead to the mapping, and other keys with
    weights. If a file contains several sets of weights, `member` is the key of the wanted set ("best",
    "ema"). Raises RbError if there are no weights, or no weights with the key `member`.
    """
    nesting: list[str] = []
    others: list[str] = []
    contents = PickleScan()
    while len(nesting) < DEEPEST:
        if raw.keys() >= OPTIMISER:
            raise RbError(
                f"The checkpoint {path} contains the state of an optimiser, but no network. Name the file"
                " with the network's weights, as returned by model.state_dict(): --checkpoint FILE."
            )
        for key, value in raw.items():
            note = vars(value) if isinstance(value, argparse.Namespace) else value
            if contents.is_plain(note):
                metadata[str(key)] = note
        holders = [key for key in raw if contents.holds_tensors(raw[key]) and "optim" not in str(key).lower()]
        inner = [key for key in WRAPPERS if key in holders]
        if member is not None and member in map(str, holders):
            inner, member = [key for key in holders if str(key) == member], None
        elif not inner and not any(isinstance(value, Tensor) for value in raw.values()):
            if len(holders) != 1:
                raise _none_found(raw, path, holders)
            inner = holders
        if not inner:
            if member is not None:
                names = [*nesting, *others]
                there = ": " + ", ".join(map(shown, names[:40])) if names else " only one set of weights"
                hint = near(member, names)
                raise RbError(
                    f"The checkpoint {path} has no weights called '{member}'.{hint} It contains{there}."
                )
            return raw, nesting, others
        nesting.append(str(inner[0]))
        others += [str(key) for key in holders if key != inner[0]]
        raw = raw[inner[0]]
    raise RbError(
        f"The checkpoint {path} has its weights inside {DEEPEST} or more nested mappings"
        f" ({', '.join(map(shown, nesting))}), or contains itself. Expected a state dict, by itself or under"
        f" one of: {', '.join(WRAPPERS)}."
    )


def _none_found(raw: Mapping[Any, Any], path: object, holders: Sequence[Any]) -> RbError:
    if holders:
        listed = ", ".join(shown(str(key)) for key in holders[:8]) + (", ..." if len(holders) > 8 else "")
        return RbError(
            f"The checkpoint {path} contains {len(holders)} sets of weights: {listed}."
            " Select one with --member NAME."
        )
    listed = ", ".join(f"'{shown(str(key))}'" for key in list(raw)[:8]) or "nothing"
    return RbError(
        f"The checkpoint {path} has no weights in any of the usual places: it contains {listed}. Expected"
        f" a state dict, by itself or under one of: {', '.join(WRAPPERS)}. Save the weights in the program"
        " that wrote the file: torch.save(model.state_dict(), FILE)."
    )


def take_normalisation(
    state: dict[str, Tensor], path: object, metadata: Mapping[str, Any]
) -> tuple[Tensor | None, Tensor | None]:
    """Move a normaliser's buffers out of the state, and return mean and standard deviation, or (None, None).

    Without buffers, numbers called mean and std in the metadata are used. Raises RbError if several
    normalisers differ.
    """
    pairs = []
    for key in list(state):
        parent, dot, leaf = key.rpartition(".")
        partner = next((parent + dot + std for std in STDS if parent + dot + std in state), None)
        if leaf in MEANS and partner and all(0 < state[n].numel() <= MOST_CHANNELS for n in (key, partner)):
            pairs.append(_of_one_size(path, state.pop(key), state.pop(partner)))
    if not pairs:
        # At the top level, or in `normalize`, `normalization` or `args` (from timm's training script).
        places = [metadata, *(metadata.get(name) for name in ("normalize", "normalization", "args"))]
        for place in places:
            if isinstance(place, Mapping) and all(_are_numbers(place.get(name)) for name in ("mean", "std")):
                pairs.append(_of_one_size(path, place["mean"], place["std"]))
    if not pairs:
        return None, None
    mean, std = pairs[0]
    if any(not torch.equal(mean, other) or not torch.equal(std, spread) for other, spread in pairs):
        raise RbError(f"The checkpoint {path} has {len(pairs)} different normalisations. Keep one of them.")
    # On the scale of pixels from 0 to 255, (255 x - mean) / std is (x - mean/255) / (std/255).
    scale = 255.0 if max(mean.abs().max(), std.abs().max()) > 2 else 1.0
    return mean / scale, std / scale


def _of_one_size(path: object, mean: Numbers, std: Numbers) -> tuple[Tensor, Tensor]:
    means, stds = per_channel(mean), per_channel(std)
    if len(means) != len(stds) and 1 not in (len(means), len(stds)):
        raise RbError(
            f"The checkpoint {path} has a normalisation with {len(means)} means and {len(stds)} standard"
            " deviations. Expected one of each for each channel."
        )
    means, stds = torch.broadcast_tensors(means, stds)
    return means, stds


def _are_numbers(values: object) -> bool:
    return (
        isinstance(values, (list, tuple))
        and 0 < len(values) <= MOST_CHANNELS
        and all(isinstance(value, (int, float)) for value in values)
    )


def is_beside(key: str) -> bool:
    """True if a tensor belongs, by its name, to a loss, a metric, or a copy of the network."""
    word, leaf = key.partition(".")[0].lower(), key.rpartition(".")[2]
    trained_with = any(part in TRAINED_WITH or part.rstrip("0123456789") == "acc" for part in word.split("_"))
    return key.startswith(COPIES) or leaf in COUNTED or trained_with or bool(WEIGHTS_OF_LOSSES.search(word))


def strip(state: dict[str, Tensor]) -> tuple[str, list[str]]:
    """Remove all prefixes that are common to all keys of the network, in place.

    Returns the removed prefixes as one string, and the names of the losses' and metrics' tensors, which are
    also removed.
    """
    taken = ""
    beside: list[str] = []
    while True:
        state.pop("n_averaged", None)  # the number of updates of torch.optim.swa_utils.AveragedModel
        words = {key.partition(".")[0] for key in state if not is_beside(key)}
        prefix = f"{words.pop()}." if len(words) == 1 else ""
        rest = [key for key in state if not key.startswith(prefix)]
        copies = [key for key in rest if key.startswith(COPIES)]
        known = prefix in (("model.", "net.", "network.") if copies else PREFIXES)
        if not prefix or len(rest) == len(state) or not (known or (rest and not copies)):
            flat = [key for key in state if is_beside(key) and not key.startswith(COPIES)]
            flat = flat if words or prefix else []  # otherwise there is nothing else
            for key in flat:
                del state[key]
            return taken, beside + [taken + key for key in flat]
        beside += [taken + key for key in rest if key not in copies]
        taken += prefix
        renamed = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
        state.clear()
        state.update(renamed)


DEPTH = 4  # levels of nesting to scan
MOST = 1_000_000  # limit of characters and numbers in one value; a long training's log has fewer


class PickleScan:
    """Examines the containers of one file, whose content must not change, and caches the results."""

    def __init__(self) -> None:
        self._holds: dict[tuple[int, int], bool] = {}
        self._sizes: dict[tuple[int, int], float] = {}

    def holds_tensors(self, value: object, depth: int = DEPTH) -> bool:
        """True if a mapping contains tensors, directly or in a nested mapping."""
        if not isinstance(value, Mapping):
            return False
        key = (id(value), depth)
        if key not in self._holds:
            items = value.values()
            self._holds[key] = any(isinstance(item, (Tensor, UnusualTensor)) for item in items) or (
                depth > 0 and any(self.holds_tensors(item, depth - 1) for item in items)
            )
        return self._holds[key]

    def is_plain(self, value: object) -> bool:
        """True if a value can be written as JSON, such as the options of a training script."""
        return self._size(value, DEPTH) <= MOST

    def _size(self, value: object, depth: int) -> float:
        """Counts characters and numbers. The count is infinite for types that JSON does not support."""
        if isinstance(value, str):
            return 1 + len(value)
        if value is None:
            return 1
        if isinstance(value, (int, float)):
            fits = abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)
            return 1 if fits else math.inf
        if not depth or not isinstance(value, (Mapping, list, tuple)):
            return math.inf
        key = (id(value), depth)
        if key not in self._sizes:
            parts = [value] if not isinstance(value, Mapping) else [list(value), list(value.values())]
            self._sizes[key] = 1 + sum(self._size(item, depth - 1) for part in parts for item in part)
            if isinstance(value, Mapping) and not all(isinstance(name, str) for name in value):
                self._sizes[key] = math.inf
        return self._sizes[key]

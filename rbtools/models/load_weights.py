"""Builds the network of an architecture, and strictly loads the weights of a file into it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rbtools import check_input, models
from rbtools.errors import Misfit, RbError
from rbtools.models import Shape, unpack
from rbtools.models.families import skeleton
from rbtools.models.meta import meta_init
from rbtools.models.normalize import Normalized
from rbtools.models.read_checkpoint import Checkpoint, counted
from rbtools.models.tensor_names import OPTIONAL, translation

# Spaces whose networks usually do not compute constants while they are built.
WITHOUT_CONSTANTS = ("nasbench201", "zoo", "torchvision", "repo", "fcnn", "rescnn")


def filled(
    checkpoint: Checkpoint, arch: Mapping[str, Any], classes: int, shape: Shape, allow: bool
) -> tuple[nn.Module, Checkpoint]:
    """Returns the network with its weights, and the checkpoint with the network's tensor names."""
    if arch.get("space") in WITHOUT_CONSTANTS:
        with meta_init():
            network = models.build(arch, classes=classes, shape=shape)
        load_into(network, checkpoint)
        if not any(buffer.is_meta for buffer in network.buffers()):
            return network, checkpoint
    with torch.random.fork_rng(devices=[]):  # such a network computes constants while it is built
        network = models.build(arch, classes=classes, shape=shape, allow_code=allow)
    if arch.get("space") not in WITHOUT_CONSTANTS:
        checkpoint = _as_saved(checkpoint, network)
    load_into(network, checkpoint)
    if arch.get("space") in models.RUNS_CODE:
        check_input.keep_images(network, shape)
    return network, checkpoint


def _as_saved(checkpoint: Checkpoint, network: nn.Module) -> Checkpoint:
    """Returns the checkpoint with the file's own tensor names if they fit the network.

    The tensor names of a user's own network may look like a wrapper's prefix or like a normaliser's buffers.
    The file may also contain losses, metrics or a second, smaller network. If no names fit, the error message
    uses the names that fit best.
    """
    names = {key for key in network.state_dict() if not key.endswith(OPTIONAL)}
    saved = {key: value for key, value in checkpoint.saved.items() if not key.endswith(OPTIONAL)}
    starts = sorted({key[:end] for key in saved for end in range(len(key)) if not end or key[end - 1] == "."})
    at = {start: {key.removeprefix(start) for key in saved if key.startswith(start)} for start in starts}
    most, best = 0, ("", "")
    for inside in _wrappers(names):
        wanted = {key.removeprefix(inside) for key in names}
        fits = [prefix for prefix, keys in at.items() if keys == wanted]
        if len(fits) > 1:
            fits = [prefix for prefix in fits if prefix == checkpoint.origin["prefix"]]
        for prefix in fits:
            rest = {key: value for key, value in saved.items() if not key.startswith(prefix)}
            others = sum(value.numel() for key, value in rest.items() if not unpack.is_beside(key))
            if others <= sum(saved[prefix + key].numel() for key in wanted):
                return _under(checkpoint, prefix, inside, rest)
        for prefix, keys in at.items():
            if len(keys & wanted) > most:
                most, best = len(keys & wanted), (prefix, inside)
    now = len(names & set(translation(checkpoint.state, dict.fromkeys(names)).values()))
    return _under(checkpoint, *best, {}) if now < most < len(names) else checkpoint


def _under(checkpoint: Checkpoint, prefix: str, inside: str, rest: dict[str, Tensor]) -> Checkpoint:
    state = {k.removeprefix(prefix): v for k, v in checkpoint.saved.items() if k.startswith(prefix)}
    origin, mean, std = {**checkpoint.origin, "prefix": prefix}, checkpoint.mean, checkpoint.std
    origin.pop("left_out", None)
    if mean is not None and (not rest or unpack.take_normalisation(dict(state), "", {})[0] is not None):
        mean, std, origin["normalisation"] = None, None, "inside the network"
    unpack.take_normalisation(rest, checkpoint.path, {})  # removes the normalisation from the rest
    if beside := [key for key in rest if not key.startswith(unpack.COPIES)]:
        origin["left_out"] = counted(beside)
    state = {inside + key: value for key, value in state.items()}
    return replace(checkpoint, state=state, mean=mean, std=std, origin=origin, inside=inside)


def _wrappers(names: set[str]) -> Iterator[str]:
    """Yields the prefixes that all names share, such as "", "module." and "module.net."."""
    inside = ""
    while True:
        yield inside
        words = {name.removeprefix(inside).partition(".")[0] for name in names}
        inside += f"{words.pop()}." if len(words) == 1 else " "
        if inside.endswith((" ", "..")) or not all(name.startswith(inside) for name in names):
            return


def load_into(network: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights strictly into `network`, or into the network inside a `Normalized`.

    Synonyms of tensor names are translated, and BatchNorm's `num_batches_tracked` may be missing. A network
    that was built under `meta_init` then shares memory with the checkpoint. Raises RbError with the names of
    tensors that are missing, unexpected, of another shape, NaN or infinite.
    """
    target = network.network if isinstance(network, Normalized) else network
    wanted: dict[str, Tensor] = target.state_dict()
    new = translation(checkpoint.state, wanted)
    given = {new[key]: value for key, value in checkpoint.state.items() if key in new}
    old = {name: checkpoint.in_file(key) for key, name in new.items()}
    there = old.keys() & wanted.keys()
    missing = [
        checkpoint.in_file(key) if there else key
        for key in wanted
        if key not in given and not key.endswith(OPTIONAL)
    ]
    unexpected = [old[key] for key in given if key not in wanted]
    others = [key for key in wanted if key in given and given[key].shape != wanted[key].shape]
    misshapen = [f"{old[key]} {_by(given[key])}, expected {_by(wanted[key])}" for key in others]
    misfits = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    if any(misfits.values()):
        listed = "; ".join(f"{word}: {counted(keys)}" for word, keys in misfits.items() if keys)
        pairs = [] if missing or unexpected else [(given[key].shape, wanted[key].shape) for key in others]
        raise Misfit(
            f"The checkpoint {checkpoint.path} does not fit {type(target).__name__} (it has {len(given)}"
            f" tensors, expected {len(wanted)}). Tensors {listed}. {_advice(checkpoint)}",
            *_of_other_images(pairs),
        )
    whole = [k for k, v in given.items() if wanted[k].is_floating_point() and not v.is_floating_point()]
    if whole:
        kind = str(given[whole[0]].dtype).removeprefix("torch.")
        raise RbError(
            f"The checkpoint {checkpoint.path} has whole numbers ({kind}) in {counted(whole)}: it is"
            " quantised, and the scales that would turn these numbers into weights are missing. Save the"
            " weights again as floating-point numbers."
        )
    broken = [key for key, value in given.items() if not _finite(value)]
    if broken:
        raise RbError(
            f"The checkpoint {checkpoint.path} has NaN or infinite numbers in {counted(broken)}."
            " The training run has diverged: use an earlier checkpoint."
        )
    on_meta = any(value.is_meta for value in wanted.values())
    if on_meta:  # the file's own tensors, copied only to change their type or layout
        given = {key: value.to(wanted[key].dtype).contiguous() for key, value in given.items()}
        lacking = [key for key, value in wanted.items() if value.is_meta and key not in given]
        given |= {key: torch.zeros_like(wanted[key], device="cpu") for key in lacking}
    state = OrderedDict(given)
    # Names and shapes are translated to the current ones, so the version number is the current one too.
    state._metadata = getattr(wanted, "_metadata", None)  # type: ignore[attr-defined]
    target.load_state_dict(state, strict=False, assign=on_meta)


def _of_other_images(pairs: Sequence[tuple[torch.Size, torch.Size]]) -> tuple[int | None, int | None]:
    """Returns the number of classes and image channels of the weights, from (found, expected) shapes.

    Both are None unless other classes in the last layer, or grey instead of RGB images (or the reverse) in
    the first layer, explain all differences.
    """
    if any(len(there) != len(wanted) or not there for there, wanted in pairs):
        return None, None
    rows = {(there[0], wanted[0]) for there, wanted in pairs if there[1:] == wanted[1:]}
    columns = {
        (3 * there[1] == wanted[1], there[1] == 3 * wanted[1])
        for there, wanted in pairs
        if len(there) > 1 and there[0] == wanted[0] and there[2:] == wanted[2:]
    }
    explained = sum(there[1:] == wanted[1:] or there[:1] == wanted[:1] for there, wanted in pairs)
    if explained < len(pairs) or len(rows) > 1 or len(columns) > 1:
        return None, None
    channels = {(True, False): 1, (False, True): 3}.get(next(iter(columns), (False, False)))
    return next((there for there, _ in rows), None), channels


def _finite(value: Tensor) -> bool:
    # A finite sum proves that all values are finite; a sum that is not finite may have overflowed.
    if value.is_meta or not value.is_floating_point() or value.sum(dtype=torch.float32).isfinite():
        return True
    return bool(value.isfinite().all())


def _advice(checkpoint: Checkpoint) -> str:
    check = "Check that --arch names the network that was trained."
    sizes = " and ".join(f"{name} {value}" for name, value in skeleton(checkpoint.state).items())
    size = f" with {sizes}" if sizes else ""
    if not checkpoint.seen:
        return check
    seen, *others = checkpoint.seen
    if others:
        return f"The file contains a NAS-Bench-201 network{size}. {check}"
    name = str(seen.arch["name"])
    if seen.arch["space"] not in ("zoo", "nasbench201"):
        name = f"{seen.arch['space']}:{name}"
    ends = f"{seen.classes} classes, {seen.in_channels} image channels"
    return f"The file contains {name}{size} ({ends}): name it with --arch, or leave out --arch."


def _by(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"

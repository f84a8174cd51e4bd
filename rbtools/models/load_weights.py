from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rbtools.errors import Misfit, RbError
from rbtools.models.families import skeleton
from rbtools.models.normalize import Normalized
from rbtools.models.read_checkpoint import Checkpoint, counted
from rbtools.models.tensor_names import OPTIONAL, translation


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
            f"The checkpoint {checkpoint.path} does not fit {type(target).__name__} ({len(given)} tensors"
            f" there, {len(wanted)} expected). Keys {listed}. {_advice(checkpoint)}",
            *_of_other_images(pairs),
        )
    whole = [k for k, v in given.items() if wanted[k].is_floating_point() and not v.is_floating_point()]
    if whole:
        kind = str(given[whole[0]].dtype).removeprefix("torch.")
        raise RbError(
            f"The checkpoint {checkpoint.path} has whole numbers ({kind}) in {counted(whole)}: it is"
            " quantised, and without their scales these are no weights. Save it with floating-point numbers,"
            " where the file comes from."
        )
    broken = [key for key, value in given.items() if not _finite(value)]
    if broken:
        raise RbError(
            f"The checkpoint {checkpoint.path} has NaN or infinite numbers in {counted(broken)}."
            " The training that made it diverged: use an earlier checkpoint."
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
    check = "Check that --arch names the network that it was trained as."
    sizes = " and ".join(f"{name} {value}" for name, value in skeleton(checkpoint.state).items())
    size = f" with {sizes}" if sizes else ""
    if not checkpoint.seen:
        return check
    seen, *others = checkpoint.seen
    if others:
        return f"The file holds a NAS-Bench-201 network{size}. {check}"
    name = str(seen.arch["name"])
    if seen.arch["space"] not in ("zoo", "nasbench201"):
        name = f"{seen.arch['space']}:{name}"
    ends = f"{seen.classes} classes, {seen.in_channels} image channels"
    return f"The file holds {name}{size} ({ends}): name that with --arch, or leave --arch out."


def _by(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a single number"

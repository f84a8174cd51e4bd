"""Recognise a network by all names and shapes of its tensors, without reading their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from rbtools.models import tensor_names
from rbtools.models.families import Inferred, State, weight
from rbtools.models.load_weights import OPTIONAL, meta_init

Build = Callable[[re.Match[str], Mapping[str, Any], int, tuple[int, int, int]], nn.Module]


def infer(
    state: State,
    names: Iterable[str],
    tells: Mapping[str, str],
    build: Build,
    *,
    heads: Sequence[str],
    stems: Sequence[str],
) -> Inferred | None:
    """The first of `names` ("OWNER/NETWORK") whose network has exactly the tensors of the state.

    `tells` maps the beginning of a NETWORK to a tensor that only networks of such names have: others are not
    built. `heads` and `stems` are the names that the last layer's weights and the first convolution's may
    have.
    """
    head = next((tensor for name in heads if (tensor := weight(state, name, 2)) is not None), None)
    stem = next((tensor for name in stems if (tensor := weight(state, name, 4)) is not None), None)
    if head is None or stem is None:
        return None
    for name in names:
        own = name.partition("/")[2]
        tell = next(tell for start, tell in tells.items() if own.startswith(start))
        match = re.fullmatch(re.escape(name), name)
        if tell not in state or match is None:
            continue
        with meta_init():
            network = build(match, {}, len(head), (stem.shape[1], 32, 32))
        if _same(state, network.state_dict()):
            return Inferred({"space": "repo", "name": name}, len(head), stem.shape[1])
    return None


def _same(state: State, wanted: State) -> bool:
    """Whether all names and shapes agree, up to synonyms and to what a network has for training alone."""
    new = tensor_names.translation(state, wanted)
    given = {new[key]: value.shape for key, value in state.items() if key in new}
    counters = (key for key in [*given, *wanted] if key.endswith(OPTIONAL))
    left_out = set(counters)
    expected = {key: value.shape for key, value in wanted.items() if key not in left_out}
    return {key: shape for key, shape in given.items() if key not in left_out} == expected

"""Infer the network of a state dict from the names and shapes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError, shown
from rbtools.models.families import FAMILIES, Inferred, State

# Tensors of diffusion models in the code of CompVis, OpenAI and diffusers.
DIFFUSION = re.compile(
    r"(model\.)?diffusion_model\..*|first_stage_model\..*|time_embed\.0\.weight|time_embedding\.linear_1\.weight"
)
CLIP = {"logit_scale", "visual.conv1.weight"}  # tensors of OpenAI's models


def infer(state: State, metadata: Mapping[str, Any] | None = None) -> Inferred:
    """Infer the network of a bare state dict (no prefixes, no normalisation).

    `metadata` is the remaining content of the file. An architecture string in the metadata decides if several
    networks have these weights. Raises RbError if no family fits, and `Ambiguous` if several networks fit.
    """
    generator = next((key for key in state if DIFFUSION.fullmatch(key)), None)
    if generator is not None:
        raise RbError(
            f"The checkpoint is a diffusion model (it has the tensor {generator}), which gives images and no"
            " logits. Name the file of a classifier with --checkpoint FILE."
        )
    if state.keys() >= CLIP:
        raise RbError(
            "The checkpoint is a CLIP model, a classifier only with the names of its classes. Write one in"
            " Python, which embeds them, and name it with --arch python:MODULE:FUNCTION."
        )
    for _, family in FAMILIES.loaded():
        inferred: Inferred | None = family(state, metadata or {})
        if inferred is not None:
            return inferred
    tops = list(dict.fromkeys(key.partition(".")[0] for key in state))
    named = ", ".join(map(shown, tops[:8])) + (", ..." if len(tops) > 8 else "")
    raise RbError(
        f"The checkpoint's network is not recognised: its {len(state)} tensors are named {named}."
        f" Recognised are: {'; '.join(FAMILIES)}. Say which network it is with --arch: a name of"
        " rb-arch --space zoo, torchvision:NAME, timm:NAME, repo:OWNER/NAME, or python:MODULE:FUNCTION for"
        " your own."
    )

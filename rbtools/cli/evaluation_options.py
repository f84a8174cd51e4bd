"""The options of evaluations: images, searches, stages in front of a network, draws of randomised models."""

from __future__ import annotations

import re
from typing import Any

import click

from rbtools.cli.option_parts import Compound, Part, old_flag


def _images(text: str) -> dict[str, Any]:
    """A number of images, or a list or file of their numbers, of which first=N takes the first N."""
    if chosen := re.fullmatch(r"(.+):first=(\d+)", text):
        return {"indices": chosen[1], "n": chosen[2]}
    return {"n": text} if re.fullmatch(r"[-+]?[\d.]+", text) else {"indices": text}


n_option = click.option(
    "--n",
    cls=Compound,
    split=_images,
    type=click.IntRange(1),
    default=None,
    metavar="N|LIST|FILE[:KEY]",
    help="Use N images, balanced over classes; or those with the numbers of a list in the split (0-999 are"
    " its first 1,000), or of a FILE (KEY: one of its lists); LIST:first=N takes N of them.",
)
indices_part = click.option("--indices", cls=Part, part_of="n", metavar="LIST|FILE", now="--n LIST")
batch_option = click.option(
    "--batch",
    cls=Compound,
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Images at a time; changes memory, not results.",
)
prepare_option = click.option(
    "--prepare",
    default="fold",
    type=click.Choice(("none", "fold", "compile")),
    help="fold: search on a copy with BatchNorm folded, channels last and in --precision; compile:"
    " compile that copy with torch.compile, and use that where its passes are faster.",
)
of_searches = (
    click.option(
        "--precision",
        default="auto",
        type=click.Choice(("auto", "fp32", "bf16")),
        help="Precision of attack searches; success is decided in float32. auto: bf16 where the machine has"
        " it.",
    ),
    prepare_option,
    old_flag("--no-prepare", "prepare", "none"),
    old_flag("--compile", "prepare", "compile"),
)
of_stages = (
    click.option(
        "--defend",
        cls=Compound,
        free=True,
        metavar="LIST",
        default=None,
        help="Stages in front of the network, each with its options: jpeg:75, quantize:bits=4,"
        " python:MODULE:CLASS.",
    ),
    click.option(
        "--backward",
        cls=Part,
        part_of="defend:backward",
        type=click.Choice(("none", "identity", "own")),
        default=None,
        help="how gradients pass all stages: none (zero), identity (BPDA), or own.  [default: of each stage"
        " what gives the strongest attack]",
    ),
)
per_image_option = click.option(
    "--per-image", is_flag=True, help="Keep whether each image counts, a bit an image."
)
of_draws = (
    click.option(
        "--draws",
        type=click.IntRange(1),
        default=20,
        metavar="N",
        help="Draws of each verdict of a randomised model; 1: judge it by one, as any other.",
    ),
)

"""The options of evaluations: images, searches, stages in front of a network, draws of randomised models."""

from __future__ import annotations

import click

n_option = click.option(
    "--n", type=click.IntRange(1), default=None, metavar="N", help="Use N images, balanced over classes."
)
indices_option = click.option(
    "--indices",
    default=None,
    metavar="LIST|FILE",
    help="Use the images with these numbers in the split (0-999 are its first 1,000), or with those in a FILE"
    " (FILE:NAME is one of its lists); --n takes N of them.",
)
batch_option = click.option(
    "--batch",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="Images at a time; changes memory, not results.",
)
prepare_option = click.option(
    "--prepare",
    default="fold",
    type=click.Choice(("none", "fold")),
    help="fold: search on a copy with BatchNorm folded, channels last and in --precision.",
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
)
of_stages = (
    click.option(
        "--defend",
        metavar="LIST",
        default=None,
        help="Stages in front of the network, each with its value: jpeg:75, quantize:4, python:MODULE:CLASS.",
    ),
    click.option(
        "--backward",
        type=click.Choice(("none", "identity", "own")),
        default=None,
        help="How gradients pass all stages of --defend: none (zero), identity (BPDA), or own.  [default: of"
        " each stage what gives the strongest attack]",
    ),
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

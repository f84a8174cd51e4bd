"""The settings that determine results in addition to the model, the images and the method."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from rbtools.registry import param, rare_param

_running = partial(rare_param, group="Running")


@dataclass(frozen=True)
class Settings:
    """The settings that may change a result, if only by rounding.

    `seed` is the seed of all random numbers. `batch` is the number of images that go through the model at
    once; None means that the device decides. `precision` is the precision of attack searches: "fp32", "bf16"
    or "auto" (chosen for the machine). If `prepare` is true, attacks may search on a fast copy of the model;
    the model itself decides in float32. `draws` is the number of random evaluations of a randomised model for
    each decision.
    """

    seed: int = param(0, "Seed of all random numbers.", bounds="[0, inf)", group="Running")
    batch: int | None = _running(
        None, "Images per batch; this affects memory, not results.", bounds="[1, inf)", metavar="N"
    )
    precision: str = _running(
        "fp32",
        "Precision of attack searches; float32 decides success. auto: bf16 if the hardware supports it.",
        choices=("auto", "fp32", "bf16"),
        typed="auto",
    )
    prepare: bool = _running(
        True,
        "With fold, attacks search on a faster copy of the network, with BatchNorm folded and in"
        " --precision.",
        choices=("none", "fold"),
        typed="fold",
    )
    draws: int = rare_param(
        20,
        "Number of random evaluations for each decision on a randomised model; with 1, the model is treated"
        " as deterministic.",
        bounds="[1, inf)",
        metavar="N",
        group="Model",
    )

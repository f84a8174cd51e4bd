"""The settings that determine results in addition to the model, the images and the method."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The settings that may change a number, if only by rounding.

    `seed` is the seed of all random numbers. `batch` is the number of images that go through the model at
    once; None means that the device decides. `precision` is the precision of attack searches: "fp32", "bf16"
    or "auto" (chosen for the machine). If `prepare` is true, attacks may search on a fast copy of the model;
    the model itself decides in float32. `draws` is the number of random evaluations of a randomised model for
    each verdict.
    """

    seed: int = 0
    batch: int | None = None
    precision: str = "fp32"
    prepare: bool = True
    draws: int = 20

"""The settings that determine results, besides the model, the images and the method."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """The settings that may change a number, if only by rounding.

    seed: of all random numbers. batch: images that go through the model at once; None chooses by the device.
    precision: of attack searches: "fp32", "bf16", or "auto": by the machine. prepare: attacks may search on a
    fast copy of the model; the model itself decides in float32. draws: of a randomised model, for each
    verdict; 1: it is judged by one.
    """

    seed: int = 0
    batch: int | None = None
    precision: str = "fp32"
    prepare: bool = True
    draws: int = 20

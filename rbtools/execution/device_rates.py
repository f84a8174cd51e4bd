"""How fast a named device works, from the lines that `bench/gpu.py` prints; for plans (`--device-rate`).

A line of the file is a JSON object. `machine` names the device; `rate` is a measurement, and other fields are
for people. A rate has `macs`, the multiply-adds of its network, `seconds`, and

    kind "evaluation": `column`, what was computed (an output's key fields), and `images`;
    kind "training": `method` with `name` and `config`, `images` of an epoch, which took the seconds, and
    `passes`, forward and backward, of each image.

A plan takes the rate of the same kind whose network is nearest in size, and scales it by multiply-adds,
images and passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import orjson

from rbtools.errors import RbError
from rbtools.execution.dry_run import count_macs, same_work, stored_results
from rbtools.plain_files import streamed
from rbtools.store import Store

Rate = dict[str, Any]


class DeviceRates:
    """The rates in a file, and what work would take on their device. Raises RbError."""

    def __init__(self, path: str) -> None:
        self.machine, self.rates = "this device", list[Rate]()
        try:
            with streamed(path) as stream:
                for number, line in enumerate(stream, 1):
                    self._take(line, f"{path}:{number}")
        except OSError as error:
            raise RbError(f"The rates {path} cannot be read: {error.strerror}.") from None
        if not self.rates:
            raise RbError(f"{path} has no rate. Expected the lines that python bench/gpu.py prints.")

    def _take(self, line: bytes, where: str) -> None:
        try:
            fields = dict(orjson.loads(line))
            if "machine" in fields:
                self.machine = str(fields["machine"])
            if "rate" in fields:
                self.rates.append(_checked(fields["rate"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RbError(f"{where} is no line of rates. Expected what python bench/gpu.py prints.") from None

    def evaluation(self, column: Mapping[str, Any], macs: int | None, images: int) -> float | None:
        """Seconds for an output on so many images; None where nothing like it was measured."""

        def times(rate: Rate) -> float | None:
            """How many times the measured work an image takes."""
            known: dict[str, Any] = rate["column"]
            if same_work(known) == same_work(column):
                return 1.0
            steps, before = _steps(column), _steps(known)
            like = known.get("attack") == column.get("attack") and known["kind"] == column["kind"]
            return steps / before if like and steps and before else None

        return self._seconds("evaluation", times, macs, images)

    def training(
        self, method: Mapping[str, Any], passes: float, macs: int | None, images: int
    ) -> float | None:
        """Seconds for an epoch of so many images; None where no training was measured."""
        names = {rate["method"]["name"] for rate in self.rates if rate["kind"] == "training"}
        same = method["name"] in names

        def times(rate: Rate) -> float | None:
            fits = rate["method"]["name"] == method["name"] or not same
            return passes / float(rate["passes"]) if fits else None

        return self._seconds("training", times, macs, images)

    def _seconds(
        self, kind: str, times: Callable[[Rate], float | None], macs: int | None, images: int
    ) -> float | None:
        """By the rate of that kind that is nearest in multiply-adds, the fastest of several."""
        if not macs:
            return None
        choices = []
        for rate in self.rates:
            factor = times(rate) if rate["kind"] == kind else None
            if factor is not None:
                seconds = rate["seconds"] * factor * (macs / rate["macs"]) * (images / rate["images"])
                choices.append((factor != 1, abs(math.log(macs / rate["macs"])), seconds))
        return min(choices)[-1] if choices else None


def _checked(rate: Rate) -> Rate:
    """The rate. Raises ValueError, KeyError or TypeError where it is none."""
    needed = ["macs", "images", "seconds"]
    if rate["kind"] == "training":
        needed.append("passes")
        rate["method"] = {name: rate["method"][name] for name in ("name", "config")}
    elif rate["kind"] == "evaluation":
        same_work(rate["column"])
    else:
        raise ValueError(rate["kind"])
    for name in needed:
        if type(rate[name]) not in (int, float) or not (math.isfinite(rate[name]) and rate[name] > 0):
            raise ValueError(name)
    return rate


def _steps(column: Mapping[str, Any]) -> float | None:
    """The steps of an attack, or the copies of an image; None where the configuration does not say."""
    config = column.get("config", {})
    if "samples" in column:
        return float(column["samples"])
    return float(config["steps"]) * float(config.get("restarts", 1)) if "steps" in config else None


def measured(store: Store) -> Iterator[Rate]:
    """The rates of the evaluations that a store has."""
    for kept in stored_results(store):
        try:
            about = kept["about"]
            column, macs = about["of"]["column"], count_macs(about["arch"])
            if column["kind"] != "clean" and macs:
                seconds = max(entry["seconds"] for entry in kept["value"])
                yield _checked(
                    {
                        "kind": "evaluation",
                        "column": column,
                        "macs": macs,
                        "images": kept["what"]["n"],
                        "seconds": seconds,
                    }
                )
        except (ValueError, KeyError, TypeError):
            continue  # another kind of result

"""Check how well the recognised network fits a user's file, and report it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rbtools.errors import RbError
from rbtools.execution.run import Run

# Where the architecture comes from, in words.
SOURCES = {
    **{"given": "as named", "weights": "by its weights", "metadata": "as it says itself"},
    "program": "a program",
}


def judged(path: str, facts: dict[str, Any], run: Run) -> dict[str, Any]:
    """The facts, with a warning if the statistics of the network's layers differ from BatchNorm's. Raises
    RbError if in that case the user did not name the network, and the first layer, which mostly depends on
    images and normalisation, fits.
    """
    fit = facts.get("fit")
    if fit is None or fit["fits"]:
        return facts
    text = _misfit(fit)
    other_images = fit["first"] > fit["most"]
    if facts["arch_from"] != "given" and not other_images:
        raise RbError(
            f"The checkpoint {path} has the names and shapes of a known network, but {text}. Name the network"
            " with --arch (python:MODULE:FUNCTION for your own; a known name evaluates it all the same), the"
            " normalisation with --normalize, or the data set that it was trained for with --dataset."
        )
    options = "--normalize and --dataset" if other_images else "--arch"
    return {**facts, "warnings": [*facts.get("warnings", ()), f"{text}. Check {options}"]}


def _misfit(fit: Mapping[str, Any]) -> str:
    if fit["divergence"] <= fit["most"]:
        return (
            f"its BatchNorm statistics do not tell on {fit['images']} images of the data set which it is, by"
            f" their divergence{_each(fit)}"
        )
    return (
        f"on {fit['images']} images of the data set its layers see something else than its BatchNorm"
        f" statistics remember: they diverge by {fit['divergence']:g}{_each(fit)}, those of the first layer"
        f" by {fit['first']:g}, and {fit['most']:g} is the most that fits. It is another network, behind"
        " another normalisation, or trained on other images"
    )


def _each(fit: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name} {value:g}" for name, value in _ranked(fit))
    return f" ({listed})" if listed else ""


def _ranked(fit: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The candidates and their divergences, the smallest first (the store sorts by name)."""
    return sorted(fit.get("divergences", {}).items(), key=lambda item: item[1])


def left_open(record: Mapping[str, Any]) -> str | None:
    """The fields of a user's file that only images decide, in words; None if there are none."""
    known, arch = record.get("recognised"), record.get("arch")
    facts = known if isinstance(known, dict) else {}
    unchecked = facts.get("unchecked")
    fields = [str(field) for field in unchecked] if isinstance(unchecked, list) else []
    if isinstance(arch, dict) and "normalize" not in arch and facts.get("normalize_from", "open") == "open":
        fields.append("normalize")
    return " and ".join({"normalize": "normalisation"}.get(field, field) for field in fields) or None


def say(path: str, arch: Mapping[str, Any], facts: Mapping[str, Any], run: Run) -> None:
    """Report what was inferred, in one line."""
    shown = ("channels", "cells", "stem", "shortcut", "activation", "eps", "member")
    of = ", ".join(f"{key} {arch[key]}" for key in shown if key in arch)
    space, name = arch["space"], str(arch.get("name") or arch.get("str"))
    name = name if space in ("zoo", "nasbench201") else f"{space}:{name}"
    by = SOURCES.get(facts["arch_from"], f"by {facts['arch_from']}")
    source = facts["normalize_from"]
    why = "nothing tells another; --normalize can" if source == "open" else f"by {source}"
    if source.startswith("guess: "):
        why = f"a guess: {source.removeprefix('guess: ')}; --normalize can tell it"
    file, normalised = os.path.basename(path), "pixels as they are"
    if facts["normalize"] is not None:
        per_image = isinstance(facts["normalize"], str)
        values = "" if per_image else " ".join(map(numbers, facts["normalize"]))
        normalised = "each image normalised by itself" if per_image else f"normalised {values}"
    run.report.notify(
        f"{file} is {name}{f' ({of})' if of else ''}, {by}; {facts['classes']} classes;"
        f" {normalised} ({why}).{_fit(facts)}"
    )
    if facts.get("others") and "member" not in arch:
        run.report.notify(
            f"{file} holds several sets of weights: {facts['nesting'][-1]} is taken, besides it are"
            f" {', '.join(facts['others'])}. --member chooses."
        )
    say_tie(path, facts, run)
    warn(path, facts, run)


def say_tie(path: str, facts: Mapping[str, Any], run: Run) -> None:
    """Report in one line normalisations that fit alike, and the clean accuracy of each."""
    tie = facts.get("normalize_tie")
    if tie is None:
        return
    taken = facts["normalize_name"]
    divergences = dict(sorted(tie["divergences"].items(), key=lambda item: (item[0] != taken, item[1])))
    each = ", ".join(
        f"{name} (divergence {value:g}, clean accuracy {tie['acc'][name]:.4f})"
        for name, value in divergences.items()
    )
    best = divergences[taken] == min(divergences.values())
    why = "it fits best" if best else "the data set's" if taken == "dataset" else "it is published most"
    run.report.notify(
        f"{os.path.basename(path)}: normalisations near each other, compared on {tie['images']} images"
        f" ({tie['acc_images']} for the accuracy): {each}. {taken} is taken, {why}; --normalize can tell"
        " another."
    )


def warn(path: str, facts: Mapping[str, Any], run: Run) -> None:
    for text in facts.get("warnings", ()):
        run.report.notify(f"warning: {os.path.basename(path)}: {text}.")


def _fit(facts: Mapping[str, Any]) -> str:
    """How well the network's layers fit BatchNorm's statistics, as a sentence; "" where unknown."""
    fit = facts.get("fit")
    if "unchecked" in facts:
        return " Its BatchNorm statistics are checked once there are images (--dataset)."
    if fit is None or not fit["fits"]:
        return ""
    if "margin" not in fit:
        return f" Its BatchNorm statistics diverge by {fit['divergence']:g}."
    (_, best), (name, value) = _ranked(fit)[:2]
    margin = f"{fit['margin']:g} times as far"
    return f" Its BatchNorm statistics diverge by {best:g}; as {name} by {value:g} ({margin})."


def numbers(values: list[float]) -> str:
    return ",".join(f"{value:.4g}" for value in values)

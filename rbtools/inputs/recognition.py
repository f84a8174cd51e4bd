"""Messages about the facts that were recognised in a user's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from rbtools.execution.run import Run

# The origin of the architecture, in words.
SOURCES = {
    **{"given": "as given", "weights": "recognised from its weights", "metadata": "as its metadata names it"},
    "program": "a program",
}


def left_open(record: Mapping[str, Any]) -> str | None:
    """The fields of a user's file that depend on the images of a data set, as a text, or None."""
    known, arch = record.get("recognised"), record.get("arch")
    facts = known if isinstance(known, dict) else {}
    unchecked = facts.get("unchecked")
    fields = [str(field) for field in unchecked] if isinstance(unchecked, list) else []
    if isinstance(arch, dict) and "normalize" not in arch and facts.get("normalize_from", "open") == "open":
        fields.append("normalize")
    return " and ".join({"normalize": "normalisation"}.get(field, field) for field in fields) or None


def say(path: str, arch: Mapping[str, Any], facts: Mapping[str, Any], run: Run) -> None:
    """Report in one line which properties of the file were inferred."""
    shown = ("channels", "cells", "stem", "shortcut", "activation", "eps", "member")
    of = ", ".join(f"{key} {arch[key]}" for key in shown if key in arch)
    space, name = arch["space"], str(arch.get("name") or arch.get("str"))
    name = name if space in ("zoo", "nasbench201") else f"{space}:{name}"
    by = SOURCES.get(facts["arch_from"], f"by {facts['arch_from']}")
    source = facts["normalize_from"]
    why = "to be tried on images of --dataset, or given by --normalize"
    if source != "open":
        why = f"from {source}"
    if source.startswith("guess: "):
        why = f"a guess: {source.removeprefix('guess: ')}; check it, or give --normalize"
    file, normalised = os.path.basename(path), "pixels as they are"
    if facts["normalize"] is not None:
        per_image = isinstance(facts["normalize"], str)
        values = "" if per_image else " ".join(map(numbers, facts["normalize"]))
        normalised = "each image normalised by itself" if per_image else f"normalised {values}"
    run.report.notify(
        f"{file} is {name}{f' ({of})' if of else ''}, {by}; {facts['classes']} classes;"
        f" {normalised} ({why}).{_tried(facts)}"
    )
    if facts.get("others") and "member" not in arch:
        run.report.notify(
            f"{file} contains several sets of weights: {facts['nesting'][-1]} is used; the others are"
            f" {', '.join(facts['others'])}. Choose with --member."
        )
    warn(path, arch, facts, run)


def warn(path: str, _: Mapping[str, Any], facts: Mapping[str, Any], run: Run) -> None:
    """Report the problems of the file."""
    for text in facts.get("warnings", ()):
        run.report.notify(f"warning: {os.path.basename(path)}: {text}.")


def _tried(facts: Mapping[str, Any]) -> str:
    tried = facts.get("tried")
    if tried is None:
        return " Images (--dataset) decide on its variant." if "unchecked" in facts else ""
    each = sorted(tried["acc"].items(), key=lambda item: -item[1])  # the store sorts by name
    listed = ", ".join(f"{accuracy:.4f} with {options}" for options, accuracy in each)
    return f" Accuracy on {tried['images']} images: {listed}."


def numbers(values: list[float]) -> str:
    return ",".join(f"{value:.4g}" for value in values)

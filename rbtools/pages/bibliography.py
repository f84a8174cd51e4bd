"""BibTeX entries (`methods.bib`) of the methods that were used for a record's results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from rbtools.pages import templates

_AUTO = ("croce2020reliable",)
# The publication of each attack, training method and certificate; those without one are absent.
ATTACKS: dict[str, tuple[str, ...]] = {
    "fgsm": ("goodfellow2015explaining",),
    "pgd": ("madry2018towards",),
    "cw": ("carlini2017towards", "madry2018towards"),
    "mi-fgsm": ("dong2018boosting",),
    "cw-l2": ("carlini2017towards",),
    "apgd-ce": _AUTO,
    "apgd-dlr": _AUTO,
    "apgd-t": _AUTO,
    "fab": ("croce2020minimally",),
    "fab-t": ("croce2020minimally", *_AUTO),
    "fmn": ("pintor2021fast",),
    "ddn": ("rony2019decoupling",),
    "square": ("andriushchenko2020square",),
    "aa": (*_AUTO, "croce2020minimally", "andriushchenko2020square"),
}
TRAININGS: dict[str, tuple[str, ...]] = {
    "pgd": ("madry2018towards",),
    "n-fgsm": ("dejorge2022make",),
    "trades": ("zhang2019theoretically",),
    "mart": ("wang2020improving",),
    "alp": ("kannan2018adversarial",),
    "clp": ("kannan2018adversarial",),
    "cvar": ("robey2022probabilistically",),
    "kl-pgd": ("zhang2019theoretically", "madry2018towards"),
}
CERTIFICATES: dict[str, tuple[str, ...]] = {
    "smooth": ("cohen2019certified",),
}


@cache
def entries() -> dict[str, str]:
    """Maps the key of each publication to its BibTeX entry."""
    text = templates.file("methods.bib")
    return {re.split("[{,]", entry, maxsplit=2)[1]: entry for entry in text.strip().split("\n\n")}


def of_record(record: Mapping[str, Any]) -> str:
    """BibTeX entries of the methods in a record, without duplicates: first for results, then for training."""
    keys: dict[str, None] = {}
    for entry in record.get("evals") or ():
        keys |= dict.fromkeys(_of_entry(entry))
    train = record.get("train")
    if isinstance(train, Mapping):
        keys |= dict.fromkeys(TRAININGS.get(str(train.get("method")), ()))
    return "\n\n".join(entries()[key] for key in keys)


def _of_entry(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if entry.get("attacks"):  # an ensemble whose attacks are not those of AutoAttack
        parts = str(entry["attacks"]).split(",")
        return tuple(key for name in parts for key in ATTACKS.get(name.strip(), ()))
    if "attack" in entry:
        return ATTACKS.get(str(entry["attack"]), ())
    if "certificate" in entry:
        return CERTIFICATES.get(str(entry["certificate"]), ())
    if "corruption" in entry or "corruptions" in entry:
        return ("hendrycks2019benchmarking",)
    return ("robey2022probabilistically",) if "noise" in entry else ()

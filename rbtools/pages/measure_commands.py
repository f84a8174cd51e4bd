"""The commands of a record's measures, as far as their entries determine them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rbtools.attacks import ATTACKS
from rbtools.measures import MEASURES
from rbtools.pages.shell_words import distance, is_number, joined, option, own_options

Entry = Mapping[str, Any]
_SETTINGS = ("on", "split", "batches", "batch_size", "init_seed", "batchnorm", "seed")
KERNELS = ("clean", "robust", "twice", "joint")  # of ntk; each computes those before it too


def is_described(entry: Entry) -> bool:
    """Whether a measure's entry says all that rb-measure asks for; a bound's inputs may have been given."""
    return entry.get("measure") in MEASURES and entry["measure"] != "bound"


def measurements(entries: Iterable[Entry], data: Iterable[str] = ()) -> list[str]:
    """A command for the numbers of each measure on the same images, weights and attack.

    Numbers that do not depend on the attack come with one that does. `data`: words that name the data set.
    """
    groups: dict[tuple[str, ...], dict[tuple[str, ...], list[Entry]]] = {}
    for entry in entries:
        groups.setdefault(_rest(entry), {}).setdefault(_attack(entry), []).append(entry)
    lines = []
    for rest, by_attack in groups.items():
        clean = by_attack.pop((), [])
        for number, (attack, some) in enumerate(by_attack.items() or [((), [])]):
            of_command = [*some, *(clean if number == 0 else [])]
            eps = dict.fromkeys(distance(entry["eps"]) for entry in some if is_number(entry.get("eps")))
            eps |= dict.fromkeys(distance(e["eps"]) for e in clean if is_number(e.get("eps")))
            listed = ["--eps", ",".join(eps)] if eps else []
            lines.append(joined("rb-measure", rest, attack, listed, _own(of_command), data))
    return lines


def _rest(entry: Entry) -> tuple[str, ...]:
    words = [str(entry["measure"])]
    for name in _SETTINGS:
        words += option(name, entry.get(name))
    n, batches, size = entry.get("n"), entry.get("batches"), entry.get("batch_size")
    if isinstance(batches, int) and isinstance(size, int) and n != batches * size:
        words += option("n", n)  # the last batch is smaller
    return tuple(words)


def _attack(entry: Entry) -> tuple[str, ...]:
    """The attack that perturbed the images; empty where there was none."""
    name = entry.get("attack")
    if not isinstance(name, str):
        return ()
    words = option("attack", name)
    if name == "pgd":
        step = option("step_size", entry.get("step_size"), of=ATTACKS.load(name))
        words += [*option("attack_steps", entry.get("steps")), *step]
    return tuple(words)


def _own(entries: Iterable[Entry]) -> list[str]:
    """The measure's own options: what the entries state, and what the names of their numbers ask for."""
    values: dict[str, Any] = {}
    names = []
    measure = ""
    for entry in entries:
        measure = entry["measure"]
        own = own_options(MEASURES.load(measure))
        values |= {name: entry[name] for name in own if name in entry and name != "eps"}
        names.append(str(entry.get("metric")).split("."))
    if measure == "ntk":
        values["kernel"] = _kernel(names)
    if measure == "hessian":
        values |= _spectrum(names)
    of = MEASURES.load(measure) if measure else None
    return [word for name, value in values.items() for word in option(name, value, of=of)]


def _kernel(names: Iterable[list[str]]) -> str:
    words = {word for parts in names for word in parts}
    if words & {"all", "all_robust"}:
        return "joint"
    return next((kernel for kernel in reversed(KERNELS) if kernel in words), KERNELS[0])


def _spectrum(names: Iterable[list[str]]) -> dict[str, Any]:
    """The options of hessian that decide which numbers it gives."""
    words = {word for parts in names for word in parts}
    wrt = sorted(words & {"weight", "input"})
    found = {"wrt": wrt[0] if len(wrt) == 1 else "both"}
    tops = [int(word[3:]) for word in words if word.startswith("top") and word[3:].isdigit()]
    lanczos = bool(tops) or "lmax" in words
    if "labs" in words:
        found["solver"] = "both" if lanczos else "power"
    return found | ({"top": max(tops)} if tops else {})

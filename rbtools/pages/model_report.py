"""The report on one model as a single HTML file: results, curves, checks, command lines and references."""

from __future__ import annotations

import base64
import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from rbtools import datasets
from rbtools.errors import RbError
from rbtools.pages import templates
from rbtools.pages.whole_pipe import steps_of
from rbtools.plots.base import encode
from rbtools.plots.curves import CurvesPlot
from rbtools.records import metric_name
from rbtools.records.results import at, interval, is_number, short_dataset
from rbtools.scoring import per_class

Record = Mapping[str, Any]
Check = tuple[str, str, bool | None]  # a test, its message, and whether it holds; None if it was not run
CHECK = "obfuscation.failed"
_BY_CLASS = 4  # metrics in the table by class
_PATH = re.compile(r"(?<![^\s=:,'])/(?!/)[^=:,']*/([^/=:,']*)")  # an absolute path
# Fields of an entry that the table of results shows.
_SAID = (
    *("attack", "norm", "eps", "steps", "restarts", "corruption", "severity", "noise", "gamma", "samples"),
    *("rho", "certificate", "sigma", "measure", "on", "split", "source", "screen", "seed"),
)
_CURVES = (
    ("Accuracy over the distance of attacks", "eps", "*", "an attack (rb-attack)"),
    ("Probabilistic robustness over the radius of noise", "gamma", "pr.*", "noise (rb-pr)"),
    ("Accuracy over the severity of corruptions", "severity", "corrupt.*", "a corruption (rb-corrupt)"),
)


def page(record: Record, latex: str, title: str | None = None) -> str:
    """The report as HTML that loads no other files and runs no script. Every text from the record is escaped.
    `latex` is the row of a LaTeX table. Paths are shown as file names only."""
    classes, record = _classes(record), _without_folders(record)
    data = short_dataset(str(record.get("dataset") or ""))
    name = title or ", ".join(str(part) for part in (at(record, ("arch", "name")), data) if part)
    values = {
        "title": name,
        "facts": _facts(record),
        "results": _results(record),
        "classes": classes,
        "curves": _curves(record),
        "checklist": _checklist(record),
        "latex": latex,
        "commands": steps_of(record),
        "bibtex": _bibtex(record),
    }
    return templates.page("report.html", {"style-src": templates.file("report.css")}, values, "img-src data:")


def _facts(record: Record) -> list[tuple[str, object]]:
    arch, train = record.get("arch") or {}, record.get("train")
    train = train if isinstance(train, Mapping) else {}
    facts = {
        "architecture": arch.get("name") or arch.get("str"),
        "parameters": arch.get("params"),
        "normalisation": _normalisation(arch, train),
        "data set": record.get("dataset"),
        "training": train.get("method"),
        "epochs": train.get("epochs"),
        "seed": train.get("seed"),
        "file of weights": record.get("checkpoint_file"),
        "weights": record.get("checkpoint"),
        "entry of RobustBench": record.get("leaderboard"),
    }
    return [(name, value) for name, value in facts.items() if value is not None]


def _normalisation(arch: Record, train: Record) -> str | None:
    """The normalisation of a weights file's architecture, or of the training; None if it is unknown."""
    config = train.get("config")
    known = arch if "normalize" in arch else config if isinstance(config, Mapping) else {}
    if "normalize" not in known:
        return None
    setting = known["normalize"]
    if isinstance(setting, list) and len(setting) == 2 and all(isinstance(side, list) for side in setting):
        mean, deviation = (", ".join(map(_figure, side)) for side in setting)
        return f"mean {mean}; standard deviation {deviation}"
    return "none: pixels in [0, 1]" if setting in (None, "none") else str(setting)


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_folders(inner) for inner in value]
    return _PATH.sub(r"\1", value) if isinstance(value, str) else value


def in_a_mean(record: Record) -> set[str]:
    """The metrics of single corruptions, if the record has their mean."""
    parts = {name: metric_name.parse(name) for name in record.get("metrics") or ()}
    single = {name for name, one in parts.items() if one.stem == "corrupt" and one.suffix != "mean"}
    return single if "corrupt.mean" in parts else set()


def _results(record: Record) -> list[list[tuple[object, ...]]]:
    """The rows of the table of results, and the rows of a second, collapsed table."""
    entries = {str(entry.get("metric")): entry for entry in record.get("evals") or ()}
    rows: tuple[list[tuple[object, ...]], ...] = ([], [])
    folded = in_a_mean(record)
    for name, value in (record.get("metrics") or {}).items():
        entry = entries.get(name, {})
        ends, count = interval(entry), entry.get("n")
        between = f"[{_share(ends[0])}, {_share(ends[1])}]" if ends else ""
        said = ", ".join(f"{key} {_said(key, entry)}" for key in _SAID if entry.get(key) is not None)
        row = (metric_name.heading(name), _share(value), between, "" if count is None else count, said)
        rows[name in folded].append(row)
    return list(rows)


def _share(value: object) -> str:
    """Format with four decimals, so that the numbers of a table can be compared."""
    return f"{value:.4f}" if isinstance(value, float) and abs(value) <= 1 else _figure(value)


def _classes(record: Record) -> tuple[list[str], list[list[object]]]:
    """The headings and the rows of the table by class, for the first metrics with per-image results."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for name in record.get("metrics") or {}:
        with contextlib.suppress(RbError, LookupError, TypeError, ValueError):
            if len(found) < _BY_CLASS and name not in in_a_mean(record):
                found[name] = per_class.counts(record, name)
    names = _class_names(record)
    rows: list[list[object]] = []
    for label in sorted({label for every in found.values() for label in every}):
        counts = [every.get(label) for every in found.values()]
        shares = ["" if one is None else f"{one[0] / one[1]:.4f}" for one in counts]
        images = max(one[1] for one in counts if one is not None)
        rows.append([names[label] if label < len(names) else label, images, *shares])
    return ["class", "n", *map(metric_name.heading, found)], rows


def _class_names(record: Record) -> list[str]:
    """The names of the classes in the model's order, or none if this order is unknown."""
    if isinstance(own := record.get("class_map"), list):
        return own
    mapped = any("class_map" in entry for entry in record.get("evals") or ())
    with contextlib.suppress(RbError):
        return [] if mapped else datasets.describe(str(record.get("dataset"))).class_names
    return []


def _said(field: str, entry: Mapping[str, Any]) -> str:
    value = entry[field]
    if field == "eps" and is_number(value):
        parts = metric_name.parse(str(entry.get("metric")))
        norm = parts.form.settings(parts).get("norm") or entry.get("norm", "linf")  # cw-l2 may have no norm
        return f"{value * 255:.4g}/255" if norm == "linf" else f"{value:g}"
    return _figure(value)


def _figure(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curves(record: Record) -> list[tuple[str, str, str]]:
    """For each curve, the title and the picture (SVG in base64), or the reason why there is no picture."""
    curves = []
    names = [(name, metric_name.parse(name).over) for name in record.get("metrics") or ()]
    for title, over, metric, what in _CURVES:
        image, reason = "", f"the record has no result under {what}."
        points = Counter(
            metric_name.parse(name)._replace(number="")
            for name, its in names
            if its == over and fnmatchcase(name, metric)
        )
        if points and max(points.values()) == 1:
            reason = "each curve has only one point, which is in the table."
        elif points:
            try:
                drawn = CurvesPlot(over=over, metric=metric, title="").draw([dict(record)])
                image = base64.b64encode(encode(drawn, "svg")).decode()
            except RbError:
                reason = f"these results do not fit in one figure; rb-plot curves --over {over} says why."
        curves.append((title, image, reason))
    return curves


def _checklist(record: Record) -> list[Check]:
    entries = [entry for entry in record.get("evals") or () if isinstance(entry, Mapping)]
    attacked = [entry for entry in entries if "attack" in entry and "measure" not in entry]
    checks = [*_adaptive(record, entries, attacked), *_masking(entries), *_flags(attacked)]
    for entry in entries:
        warnings = at(entry, ("sanity", "warnings")) or ()
        checks += [("outputs on the first images", str(warning), False) for warning in warnings]
    return list(dict.fromkeys(checks))


def _adaptive(record: Record, entries: Sequence[Record], attacked: Sequence[Record]) -> Iterator[Check]:
    """Whether attacks included the stages before the network, which gradients were replaced, and whether the
    attacks averaged over the random samples of a randomised model."""
    stages = dict.fromkeys(str(entry["defend"]) for entry in entries if "defend" in entry)
    if stages:
        transfer = [entry for entry in attacked if "transfer" in str(entry.get("metric")).split(".")]
        adaptive = [entry for entry in attacked if "defend" in entry and entry not in transfer]
        ran = ", ".join(["adaptive"] * bool(adaptive) + ["transfer"] * bool(transfer)) or "none"
        says = f"with {', '.join(stages)}; attacks that were run: {ran}"
        yield "adaptive attack", says, bool(adaptive)
        for entry in adaptive:
            ways = zip(str(entry["defend"]).split(","), entry.get("backward") or (), strict=False)
            if replaced := ", ".join(f"{stage}: {way}" for stage, way in ways if way != "own"):
                yield "gradients replaced (BPDA)", replaced, "none" not in replaced
    if record.get("randomised"):
        means = [entry for entry in attacked if isinstance(entry.get("eot"), int) and entry["eot"] > 1]
        for entry in means:
            name = metric_name.heading(str(entry["metric"]))
            says = f"{name}: means of the {entry.get('eot_mean')} over {entry['eot']} random samples"
            yield "EOT", says, True
        if not means:
            yield "EOT", "the model is randomised, but no attack averaged over its random samples", False
    elif attacked and not stages:
        says = "the network has no stage before it and no random part, so attacks cover the complete model"
        yield "adaptive attack", says, True


def _masking(entries: Sequence[Record]) -> Iterator[Check]:
    checked = [entry for entry in entries if str(entry.get("metric")).endswith(CHECK)]
    listed = checked[-1].get("tests") if checked else None
    tests = [test for test in listed if isinstance(test, Mapping)] if isinstance(listed, list) else []
    for test in tests:
        yield f"gradient masking {test.get('test')}", str(test.get("says")), bool(test.get("holds"))
    if not tests:
        yield "gradient masking, a to e", "rb-attack check was not run on this model", None


def _flags(attacked: Sequence[Record]) -> Iterator[Check]:
    for entry in attacked:
        name, warnings = (
            f"flags of {metric_name.heading(str(entry.get('metric')))}",
            entry.get("warnings") or (),
        )
        for warning in warnings:
            yield name, str(warning), False
        parts = entry.get("broken_by")
        if warnings or not _is_autoattack(entry):
            continue
        if entry.get("tool") == "rb-attack" and isinstance(parts, Mapping) and "square" in parts:
            yield name, "no vanishing gradients, no images that only Square broke, and no replaced loss", True
        else:
            words = "the entry does not show that rb-attack ran Square, which detects these problems"
            yield name, words, None
    if not any(map(_is_autoattack, attacked)):
        yield "flags of AutoAttack", "rb-attack aa was not run on this model", None


def _is_autoattack(entry: Mapping[str, Any]) -> bool:
    """Whether the complete AutoAttack was run, and not another ensemble of `rb-attack aa`."""
    return entry.get("attack") == "aa" and not entry.get("attacks")


# --- BibTeX entries of the methods that were used for a record's results -----------------------------

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
def publications() -> dict[str, str]:
    """Maps the key of each publication to its BibTeX entry."""
    text = templates.file("methods.bib")
    return {re.split("[{,]", entry, maxsplit=2)[1]: entry for entry in text.strip().split("\n\n")}


def _bibtex(record: Mapping[str, Any]) -> str:
    """BibTeX entries for the methods in a record, without duplicates: for results, then for training."""
    keys: dict[str, None] = {}
    for entry in record.get("evals") or ():
        keys |= dict.fromkeys(_publications_of(entry))
    train = record.get("train")
    if isinstance(train, Mapping):
        keys |= dict.fromkeys(TRAININGS.get(str(train.get("method")), ()))
    return "\n\n".join(publications()[key] for key in keys)


def _publications_of(entry: Mapping[str, Any]) -> tuple[str, ...]:
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

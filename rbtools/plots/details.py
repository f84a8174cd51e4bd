"""What `rb-attack --detail` keeps of an evaluation: confidences and confusion, by metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rbtools.errors import RbError, near
from rbtools.records import expr

Record = dict[str, Any]
Details = dict[str, list[dict[str, Any]]]  # metric -> the details of the records that have them


def of(records: Sequence[Record], asked: str | None, key: str) -> Details:
    """The details of the metrics of a list (all that have some), of those records that have `key`.

    Raises RbError where none has, and for a metric of the list that no record has details of.
    """
    found: Details = {}
    for record in records:
        for entry in record.get("evals") or ():
            detail = entry.get("detail")
            if isinstance(detail, dict) and key in detail:
                found.setdefault(str(entry.get("metric")), []).append(detail)
    if not found:
        raise RbError(
            f"No record has the {key} of an evaluation. It is kept by --detail: rb-attack fgsm --eps 1-8"
            " --detail."
        )
    if asked is None:
        return found
    chosen: dict[str, None] = {}
    for item in filter(None, (part.strip() for part in asked.split(","))):
        matching = expr.expand(item, found)
        if not matching:
            raise RbError(
                f"--metric: no record has the {key} of '{item}'.{near(item, found)} There is that of:"
                f" {', '.join(found)}."
            )
        chosen.update(dict.fromkeys(matching))
    if not chosen:
        raise RbError("--metric is empty. Expected metrics with commas, such as fgsm.8,pgd20.*")
    return {name: found[name] for name in chosen}

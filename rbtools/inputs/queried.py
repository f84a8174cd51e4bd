"""Models without gradients, which are reached by a command or an address, and their records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rbtools import spaces
from rbtools.errors import RbError, shown
from rbtools.execution.run import Run
from rbtools.inputs.data import Data, data_of, of_data
from rbtools.queries import KINDS
from rbtools.queries.base import FORMS
from rbtools.records import SCHEMA

if TYPE_CHECKING:
    from torch import nn

    from rbtools.queries.base import KindOfModel

SPACE = "answers"  # the space of these models in records


def only_answers(record: Mapping[str, Any]) -> bool:
    arch = record.get("arch")
    return isinstance(arch, Mapping) and arch.get("space") == SPACE


def record_of(kind: KindOfModel, run: Run) -> dict[str, Any]:
    """Create a record for a model that the user names. Raises RbError if the model does not answer, or if its
    answers do not fit the data."""
    from rbtools.queries import model

    if "://" in kind.text and "?" in kind.text:
        run.report.notify("The query of the address is written to records. Pass keys with --headers instead.")
    data = data_of({}, run)
    name, facts = model.identified(kind, data.about.shape, run)
    if facts.get("scores", data.about.classes) != data.about.classes:
        raise RbError(
            f"The model returns {facts['scores']} scores, but the data set has {data.about.classes}"
            " classes. Name the data set that it was made for with --dataset, or give --classes."
        )
    answers = "labels" if facts["form"] == "label" else "logits"
    arch = {"space": SPACE, **kind.fields(), "answers": answers}
    run.kept[f"identified {name}"] = True
    return {
        "schema": SCHEMA,
        "arch": spaces.describe(arch, data.about.classes, data.about.shape),
        **of_data(data),
        "checkpoint": name,
        "recognised": {"form": facts["form"], "normalize_from": "model"},
    }


def kind_of(record: Mapping[str, Any], run: Run) -> KindOfModel:
    """The kind of a record's model. Raises RbError without --allow-code, because a record is not trusted."""
    of_record = ("space", "kind", "name", "answers")
    fields = {key: value for key, value in record["arch"].items() if key not in of_record}
    kind, text = record["arch"].get("kind"), record["arch"].get("name")
    if not run.selection.allow_code:
        raise RbError(
            f"The record's model runs or contacts {shown(str(text))}. A record may not do this without your"
            " permission. If you trust it, add --allow-code."
        )
    cls = KINDS.load(kind) if isinstance(kind, str) and KINDS.knows(kind) else None
    try:
        if cls is not None and isinstance(text, str):
            return cls(text=text, **fields)
    except TypeError:
        pass
    raise RbError(f"The record has an unknown model, {shown(repr(record['arch']), 80)}. Create it again.")


def check(record: Mapping[str, Any], run: Run, data: Data) -> None:
    """Raise RbError if the model has changed since the record was created. It is queried once per run."""
    name = record.get("checkpoint")
    if run.plan is not None or f"identified {name}" in run.kept:
        return
    from rbtools.queries import model

    found, _ = model.identified(kind_of(record, run), data.about.shape, run)
    if found != name:
        raise RbError(
            "The model's results on the fixed images differ from those when the record was created,"
            " so it has changed. Create a new record, or declare a version with --model-version."
        )
    run.kept[f"identified {name}"] = True


def load(record: Mapping[str, Any], data: Data, run: Run) -> nn.Module:
    """Load the model of a record. Raises RbError if it cannot be reached."""
    from rbtools.queries import model

    facts = record.get("recognised")
    form = facts.get("form") if isinstance(facts, dict) else None
    if form not in FORMS:
        raise RbError(f"The model returns {shown(repr(form), 40)}, an unknown kind. Create the record again.")
    return model.loaded(kind_of(record, run), record["checkpoint"], form, data.about.classes, run)


def answers_of(record: Mapping[str, Any], run: Run) -> str | None:
    """What a record's model returns: "logits" or "labels", or "logits with gradients" if a twin provides the
    gradients. None for a network."""
    answers = record["arch"].get("answers")
    if answers not in ("logits", "labels"):
        return None
    return "logits with gradients" if "gradients" in record or run.selection.gradients_from else answers


def eight_bit(record: Mapping[str, Any]) -> bool:
    """Whether the record's model receives 8-bit images."""
    return only_answers(record) and record["arch"].get("model_pixels") == "uint8"

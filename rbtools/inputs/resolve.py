"""Finds a record's checkpoint, and loads its model."""

from __future__ import annotations

import os
import re
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools import check_input, models
from rbtools.datasets.indices import ORDER
from rbtools.errors import Pending, RbError
from rbtools.execution import resources
from rbtools.execution.run import Run
from rbtools.inputs import queried
from rbtools.inputs.data import Data, InMemory, data_of, named_data, of_data
from rbtools.lazy import nn, torch
from rbtools.spaces.identity import identity

if TYPE_CHECKING:
    from rbtools.models.answering import AnsweringModel


def names(record: dict[str, Any], data: Data) -> dict[str, Any]:
    """The names of a record's model and data. Keys in the store do not contain these names."""
    labels: dict[str, Any] = {"arch": {}, "dataset": data.name}
    for part, wanted in (("arch", ("name", "index")), ("train", ("method", "seed", "epochs"))):
        if isinstance(record.get(part), dict):
            labels[part] = {name: record[part][name] for name in wanted if name in record[part]}
    return labels


def checkpoint_name(record: dict[str, Any], run: Run) -> str:
    """The name ("sha256:...") of the record's checkpoint, whose file may be missing. Raises RbError if the
    record has no checkpoint, or if the content of a user's file has changed."""
    name = record.get("checkpoint")
    if not name and run.plan is not None:
        return str(run.plan.untrained())
    if not name and (code := record["arch"].get("code")) and run.selection.allow_code:
        return f"{_CODE}{code}"
    if not name:
        raise no_checkpoint()
    if not isinstance(name, str) or not re.fullmatch("sha256:[0-9a-f]{64}", name):
        raise RbError(f"The record's checkpoint is {name!r}. Expected 'sha256:' and 64 hexadecimal digits.")
    file = record.get("checkpoint_file")
    if isinstance(file, str) and os.path.isfile(file) and hash_of(file, run) != name:
        raise RbError(
            f"The checkpoint {file} is not the file that the record was created from: its content has"
            f" changed ({name[:19]}... expected). Create a new record with --checkpoint {file}."
        )
    return name


_CODE = "code:"  # begins the name of a function that answers and has no weights


def no_checkpoint() -> RbError:
    return RbError(
        "The record has no checkpoint, so there is nothing to evaluate. Train it first"
        " (rb-train --method trades), or name a file with --checkpoint."
    )


def checkpoint_of(record: dict[str, Any], run: Run) -> tuple[str, Path]:
    """The name of the record's checkpoint, and its file, named in the record or found in the store. Raises
    RbError if the record has no checkpoint, if the file is missing, or if its content has changed."""
    name, file = checkpoint_name(record, run), record.get("checkpoint_file")
    if not record.get("checkpoint") and run.plan is not None:
        raise Pending("The record's network is not trained yet.")
    if isinstance(record, InMemory) or name.startswith(_CODE) or queried.only_answers(record):
        return name, Path()
    if file is None:
        return name, run.store.object(name)
    if not isinstance(file, str) or not os.path.isfile(file):
        if run.store.has_object(name):  # the record is from another machine
            return name, run.store.object(name)
        raise RbError(
            f"The checkpoint {file} does not exist, and the store has no file with its hash. Check the path"
            " in the record."
        )
    return name, Path(file)


def hash_of(path: str, run: Run) -> str:
    """The hash of a file's content, sha256:HEX. Raises RbError if the file cannot be read."""
    try:
        return run.store.file_hash(path)
    except OSError as error:
        raise RbError(
            f"The checkpoint {error.filename or path} cannot be read: {error.strerror}. Check that it exists"
            " and that you have permission to read it."
        ) from None


def load_model(record: dict[str, Any], data: Data | None, run: Run, device: torch.device) -> nn.Module:
    """The record's network with its weights and normalisation, in eval mode and with frozen parameters.

    If the run's selection has defence stages, they are in front of the network. Without data, the network has
    the number of classes and the image shape with which the file was recognised. Raises RbError.
    """
    model, twin = _load_bare(record, data, run, device), twin_of(record)
    if twin is not None:
        from rbtools.models.answering import TwinGradients

        model = TwinGradients(model, _load_bare(twin, data, run, device)).eval()
    stages = run.selection.defend
    return model if stages is None else stages.before(model).eval()


def _load_bare(record: dict[str, Any], data: Data | None, run: Run, device: torch.device) -> nn.Module:
    from rbtools.models import checkpoint

    if isinstance(record, InMemory):
        return deepcopy(record.model).to(device).eval().requires_grad_(False)
    name, file = checkpoint_of(record, run)
    if name.startswith(_CODE):
        return _function(record, data, run).eval()
    if queried.only_answers(record):
        return queried.load(record, data or data_of(record, run), run).eval()
    if run.store.hash_now(file) != name:
        checkpoint_of(record, run)  # this raises an error with the reason
    classes, shape = _recognised(record) if data is None else (data.about.classes, data.about.shape)
    model, _, _ = checkpoint.load(
        file, arch=record["arch"], classes=classes, shape=shape, allow_code=run.selection.allow_code
    )
    tell_of_copies(record, model, name, run)
    return model.to(device).eval().requires_grad_(False)


def twin_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """The record of the checkpoint that provides gradients, if the model has none of its own."""
    twin = record.get("gradients")
    return twin if isinstance(twin, dict) and isinstance(twin.get("arch"), dict) else None


def _function(record: dict[str, Any], data: Data | None, run: Run) -> AnsweringModel:
    """The model of a user's function without gradients. Raises RbError for a network, which needs weights."""
    from rbtools.models.answering import AnsweringModel

    classes, shape = _recognised(record) if data is None else (data.about.classes, data.about.shape)
    if classes is None or shape is None:
        raise no_checkpoint()
    model = models.build(record["arch"], classes=classes, shape=shape, allow_code=run.selection.allow_code)
    if not isinstance(model, AnsweringModel):
        raise no_checkpoint()
    return model


def tell_of_copies(record: dict[str, Any], network: nn.Module, name: str, run: Run) -> None:
    """Report once for each network (`name` identifies its weights) that it receives copies of its images."""
    told = run.kept.setdefault("networks that get copies", set())
    if name not in told and check_input.gets_copies(network):
        told.add(name)
        arch = record["arch"]
        run.report.notify(f"{arch.get('name') or arch.get('str')}: {check_input.COPIES}.")


def _recognised(record: dict[str, Any]) -> tuple[int | None, tuple[int, int, int] | None]:
    """The number of classes and the image shape with which a file was recognised, or (None, None)."""
    facts = record.get("recognised")
    facts = facts if isinstance(facts, dict) else {}
    classes, shape = facts.get("classes"), facts.get("shape")
    sizes = shape if isinstance(shape, list) and len(shape) == 3 else []
    whole = [size for size in (classes, *sizes) if type(size) is int and size > 0]
    if len(whole) != 4:
        return None, None
    return whole[0], (whole[1], whole[2], whole[3])


@dataclass(frozen=True)
class Inputs:
    """A record, one split of its data, and the run that evaluates the record."""

    record: dict[str, Any]
    data: Data
    run: Run

    @property
    def n(self) -> int:
        """The number of images to evaluate."""
        return self.data.size if self.run.selection.n is None else min(self.run.selection.n, self.data.size)

    @cached_property
    def noted(self) -> dict[str, Any]:
        """Facts about the model by name, kept so that a run without a store computes them only once."""
        return {}

    @cached_property
    def checkpoint(self) -> str:
        """The name of the checkpoint; for a function without gradients, with its outputs for fixed images."""
        name = checkpoint_name(self.record, self.run)
        if not name.startswith(_CODE):
            return name
        from rbtools.models.answering import fingerprint

        model = _function(self.record, self.data, self.run)
        return f"{name}:{fingerprint(model, self.data.about.shape)}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a key that identify the model and the data."""
        return {
            "checkpoint": self.checkpoint,
            "arch": identity(self.record["arch"]),
            "data": self.data.fingerprint,
            "split": self.data.split,
            "order": ORDER,
            **({} if (twin := twin_of(self.record)) is None else {"gradients": self.twin_fields(twin)}),
            **({} if (stages := self.run.selection.defend) is None else stages.key_fields()),
        }

    def twin_fields(self, twin: dict[str, Any]) -> dict[str, Any]:
        return {"checkpoint": checkpoint_name(twin, self.run), "arch": identity(twin["arch"])}

    def on(self, split: str, **changes: Any) -> Inputs:
        """The same record with another split or with other options of the run."""
        run = self.run.changed(**changes)
        return Inputs(self.record, data_of(self.record, run, split), run)

    def load_model(self, device: torch.device) -> nn.Module:
        return load_model(self.record, self.data, self.run, device)

    def threads(self) -> int:
        """The number of CPU threads for an evaluation of the network."""
        return resources.threads_for(self.run, self.record["arch"])

    def record_with_data(self) -> dict[str, Any]:
        """The record with its data set and, if there is a class map, the order of the classes."""
        record, data = self.record, self.data
        if "dataset" not in record:
            return {**record, **of_data(data)}
        if data.class_map is not None and named_data(record, data.name) == data.name:
            return {**record, "class_map": list(data.about.class_names)}
        return record

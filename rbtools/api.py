"""One function for each tool except rb-store. It takes a record and returns the records of the tool.

    import rbtools
    record = rbtools.train({"arch": {"space": "nasbench201", "index": 13714, "cells": 1}}, "trades", epochs=2)
    record = rbtools.attack(record, "pgd", eps=[8])
    record["metrics"]["pgd20.8"]

Every function runs the command of its tool. The keyword arguments are the options of the command line, with
the same defaults and units: L-infinity distances in 1/255 (`8`, `"8/255"`), L2 distances and radii for pixels
in [0, 1]. Dashes in the name of an option become underscores. A value with several items is a list or a
string with commas. A record, a list of records or a mapping can be passed instead of a file.
`help(rbtools.attack)` shows the options of the tool, and `rb-attack pgd --help` shows the options of a
method. If the tool fails, the function raises rbtools.errors.RbError with the tool's message; the tool's
warnings become Python warnings.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rbtools.check_input import outside_inference
from rbtools.cli import options as tool_options
from rbtools.cli import python_calls, streams
from rbtools.cli.declare import Tool
from rbtools.cli.python_calls import as_typed
from rbtools.cli.streams import MemoryStreams
from rbtools.errors import RbError, UsageError
from rbtools.execution.report import progress_of
from rbtools.records.lines import check_shape

if TYPE_CHECKING:
    from torch import nn

Record = dict[str, Any]  # describes a model, see rb-record(5)
Given = Any  # a record, or with data= a torch module
Numbers = float | str | Iterable[float | str]
F = TypeVar("F", bound=Callable[..., Any])


def _tool(name: str, *words: str) -> Callable[[F], F]:
    """Show the options of a tool's command in the signature of its function; None stands for the default."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        options = python_calls.parameters(name, words)
        *first, rest = own.parameters.values()
        for place, param in enumerate(first):
            if param.name in options and param.default is not param.empty:
                first[place] = param.replace(default=options[param.name][0].default)
        others = [param for key, (param, _) in options.items() if key not in own.parameters]
        parameters = [*sorted([*first, *others], key=lambda param: param.kind), rest]
        texts = [
            f"    {key if key in own.parameters else param.name}: {text}"
            for key, (param, text) in options.items()
        ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        function.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n\nOptions:", *texts])
        return function

    return decorate


@_tool("arch")
def arch(
    which: int | str | Iterable[int | str] | None = None, space: str | None = None, **options: Any
) -> list[Record]:
    """Return architectures of a search space as records: all architectures, or the architectures in `which`
    (numbers or names); see rb-arch."""
    from rbtools.spaces import sized

    if which is not None:
        sizes = {name: options[name] for name in ("channels", "cells", "width", "depth") if name in options}
        named = [which] if isinstance(which, (int, str)) else which
        options["index"] = [sized(space or "nasbench201", **sizes).find(str(name)) for name in named]
    return python_calls.call("arch", (), {"space": space, **options}, MemoryStreams())


@_tool("attack")
def attack(
    record: Given,
    attack: str | None = None,
    eps: Numbers | None = None,
    *,
    preset: str | None = None,
    **options: object,
) -> Record:
    """Return the record with its accuracy under an attack at every distance; see rb-attack.

    With `preset`, the attacks of a paper run at the paper's distances or at `eps`.
    """
    if (attack is None) == (preset is None):
        raise UsageError("Expected either the name of an attack or the name of a paper (preset=), not both.")
    if eps is not None:
        options["eps"] = eps
    return _of_record("attack", [attack] if attack is not None else ["preset", str(preset)], options, record)


@_tool("card")
def card(record: Given, **options: object) -> Record:
    """Return the record with all results that can be measured within `time`; see rb-card."""
    return _of_record("card", [], options, record)


@_tool("certify")
def certify(record: Given, method: str, eps: Numbers | None = None, **options: object) -> Record:
    """Return the record with its certified accuracy at every distance; see rb-certify."""
    return _of_record("certify", [method], {"eps": eps, **options}, record)


@_tool("attack", "check")
def check(record: Given, **options: object) -> Record:
    """Return the record with five tests for gradient masking; see rb-attack check."""
    return _of_record("attack", ["check"], options, record)


@_tool("attack", "curve")
def curve(record: Given, **options: object) -> Record:
    """Return the record with its robust accuracy at every distance; see rb-attack curve."""
    return _of_record("attack", ["curve"], options, record)


@_tool("attack", "transfer")
def transfer(
    record: Given,
    origin: Mapping[str, Any] | str | os.PathLike[str] | Sequence[Mapping[str, Any] | str | os.PathLike[str]],
    attack: str | None = None,
    **options: object,
) -> Record:
    """Return the record with its accuracy on adversarial examples of other models; see rb-attack transfer.

    `origin` is the record of the attacked model, the path of its file or checkpoint, or a list of records and
    paths.
    """
    for one in origin if isinstance(origin, (list, tuple)) else [origin]:
        if isinstance(one, Mapping):
            _check_record(one)
    return _of_record("attack", ["transfer"], {"origin": origin, "attack": attack, **options}, record)


@_tool("convert")
def convert(
    format: str,
    path: str | os.PathLike[str],
    records: Iterable[Mapping[str, Any]] | None = None,
    **options: object,
) -> list[Record]:
    """Return the records of a published file or folder; see rb-convert. If `records` are given, they are
    first written to the file or folder."""
    if records is not None:
        python_calls.call("convert", [format], {"target": path, **options}, MemoryStreams(records))
    return python_calls.call("convert", [format, os.fspath(path)], options, MemoryStreams())


@_tool("corrupt")
def corrupt(record: Given, corruptions: str | Iterable[str], **options: object) -> Record:
    """Return the record with its accuracy under corruptions; see rb-corrupt. `reference` is a record or a
    file."""
    return _of_record("corrupt", [as_typed(corruptions)], options, record)


@_tool("ge")
def ge(record: Given, evaluation: str, chosen: str = "", **options: object) -> Record:
    """Return the record with the value of an evaluation on train minus its value on test; see rb-ge.

    `evaluation` is "acc", "attack", "loss", "corrupt" or "pr". `chosen` is the attack for "attack" and
    "loss", the corruptions for "corrupt", and the noise for "pr". The options are those of the
    command for this evaluation.
    """
    words = {
        "attack": ["attack", chosen or "pgd"],
        "loss": ["loss", "attack", chosen or "pgd"],
        "corrupt": ["corrupt", chosen or "all"],
    }.get(evaluation, [evaluation])
    noise = {"noise": chosen} if evaluation == "pr" and chosen else {}
    return _of_record("ge", words, {**noise, **options}, record)


@_tool("plot")
def plot(records: Any, kind: Any, **options: object) -> Any:
    """Return a matplotlib Figure of records, or the text of a page; see rb-plot. The options are those of the
    figure.

    The first two arguments can be swapped: plot(records, "box") and plot("box", records) are the same.
    With `output`, the figure or page is also written to this file. `rbtools.plots.base.encode(figure, "svg")`
    returns the bytes that rb-plot writes.
    """
    if isinstance(records, str):
        records, kind = kind, records
    memory = MemoryStreams(records)
    python_calls.call("plot", [kind], {"output": "", **options}, memory)
    return memory.result


def read(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records in a JSON Lines file. Raises RbError for a line that is not a record."""
    from rbtools.records import read as records_of

    return list(records_of(os.fspath(path)))


def frame(records: Iterable[Mapping[str, Any]]) -> Any:
    """Return a pandas DataFrame with a row for each record and the columns of `rb-convert csv --write`, which
    are named after metrics and fields.
    """
    from rbtools.formats.csv import CSV

    return CSV(raw=True).table(dict(record) for record in records)


@_tool("pr")
def pr(record: Given, gamma: Numbers | None = None, noise: str | None = None, **options: object) -> Record:
    """Return the record with its probabilistic robustness at every radius; see rb-pr."""
    return _of_record("pr", [], {"gamma": gamma, "noise": noise, **options}, record)


@_tool("measure")
def measure(
    record: Given, measures: Any, names: str | Iterable[str] | None = None, **options: object
) -> Record:
    """Return the record with measures of its network; see rb-measure.

    `measure(model, data, "ntk,...")` measures a module in memory.
    """
    if names is not None:
        options["data"], measures = measures, names
    return _of_record("measure", [as_typed(measures)], options, record)


@_tool("train")
def train(record: Given, method: str | None = None, **options: Any) -> Any:
    """Return the record with a trained checkpoint; see rb-train. The options of the recipe and of the method
    are keywords.

    With `data=`, a module is trained in place by `rbtools.fit`, whose result is returned.
    """
    if "data" in options and not isinstance(record, Mapping):
        from rbtools.trainer.fit import fit

        return fit(record, options.pop("data"), method or "trades", **options)
    return _of_record("train", [], {"method": method, **options}, record)


@_tool("score")
def score(
    records: Iterable[Mapping[str, Any]], metrics: str | Iterable[str] | None = None, **options: object
) -> list[Record]:
    """Return the records with their composite score; see rb-score.

    `weights` maps metrics to numbers such as 2; `lower` and `higher` override the direction of metrics.
    """
    return _of_records("score", [], {"metrics": metrics, **options}, records)


@_tool("rank")
def rank(
    records: Iterable[Mapping[str, Any]], by: str | Iterable[str] | None = None, **options: object
) -> list[Record]:
    """Return the records in the order of their ranks, each with its "rank"; see rb-rank."""
    return _of_records("rank", [], {"by": by, **options}, records)


@_tool("corr")
def corr(
    records: Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Mapping[str, Any]]],
    metrics: str | Iterable[str] | None = None,
    kind: str | None = None,
    **options: object,
) -> list[Record]:
    """Return rank correlations, one object for each pair of metrics, as rb-corr writes them.

    `records` is an iterable of records, or maps names to result sets, which are joined by the fields `on`.
    """
    options = {"metrics": metrics, "kind": kind, **options}
    if not isinstance(records, Mapping):
        return _of_records("corr", [], options, records)
    if len(records) > 1 and not options.get("on"):
        raise UsageError("To join result sets, name the fields that they share, such as on='arch.index'.")
    sets = {f"{name}.jsonl": some for name, some in records.items()}
    return python_calls.call("corr", list(sets), options, MemoryStreams(files=sets))


@_tool("search")
def search(
    records: Iterable[Mapping[str, Any]],
    algorithm: str,
    objective: str | Iterable[str] | None = None,
    **options: object,
) -> list[Record]:
    """Return the result of a search over a table of records, as rb-search writes it.

    Call this function as `rbtools.api.search`, because `rbtools.search` is the package of the search
    algorithms. `objective` is a metric or an expression; `lower` and `higher` override its direction.
    nsga2 needs several objectives. `report_table` maps names to further tables in which the
    results are looked up.
    """
    return _of_records("search", [algorithm], {"objective": objective, **options}, records)


@_tool("verify")
def verify(record: Given, **options: object) -> Record:
    """Return the record with the verdict on each of its results, under "verify"; see rb-verify."""
    return _of_record("verify", [], options, record)


def load(record: Given, **options: object) -> nn.Module:
    """Return the record's network in eval mode, with its weights and its normalisation; it maps images in [0,
    1] to logits.

    The options are those of a run, such as `dataset`, `member`, `device` and `store`. If a record made from
    a checkpoint file (rb-arch --from-checkpoint) names no data set, the architecture found in the file is
    used. Without `dataset=`, fields that depend on the images of a data set are not determined, and a warning
    names these fields.
    """
    _check_record(record)
    memory = MemoryStreams([record])
    python_calls.call(_LOAD, (), options, memory)
    network: nn.Module = memory.result
    return network


@tool_options.takes_run(without=("precision", "prepare"))
def _load(work: tool_options.CommandContext) -> None:
    from rbtools.execution import device
    from rbtools.inputs import checkpoints, resolve

    memory, run = streams.of_command(), work.run
    assert isinstance(memory, MemoryStreams)
    (record,) = memory.records
    place = device.choose(run)
    if "checkpoint_file" in record and "dataset" not in record and run.selection.dataset is None:
        left = checkpoints.left_open(record)
        if left:
            work.screen.warn(
                f"The record does not specify its {left}. Name a data set (dataset=) to determine it."
            )
        memory.result = resolve.load_model(record, None, run, place)
    else:
        memory.result = checkpoints.resolve_inputs(record, run).load_model(place)


_LOAD = Tool("rbtools.load", _load)


@outside_inference()
def _of_record(tool: str, words: Sequence[str], options: Mapping[str, Any], record: Given) -> Record:
    """The only record that a tool writes for one record, or for a module and its images (`data=`)."""
    record, options = _in_memory(record, options)
    _check_record(record)
    with progress_of(options.pop("progress", None)) as progress:
        written = python_calls.call(tool, words, options, MemoryStreams([record], progress=progress))
    if len(written) != 1:
        raise RbError(f"rb-{tool} writes {len(written)} records, not one. Call the function once for each.")
    return written[0]


def _of_records(
    tool: str, words: Sequence[str], options: Mapping[str, Any], records: Iterable[Mapping[str, Any]]
) -> list[Record]:
    records = list(records)
    for record in records:
        if not isinstance(record, Mapping):
            _check_record(record)
    return python_calls.call(tool, words, options, MemoryStreams(records))


def _in_memory(given: Given, options: Mapping[str, Any]) -> tuple[Given, dict[str, Any]]:
    """The record of a module and the options without `data`; other arguments are returned unchanged."""
    options = dict(options)
    if isinstance(given, Mapping) or "data" not in options:
        return given, options
    import torch

    from rbtools.inputs.data import record_in_memory

    record = record_in_memory(given, options.pop("data"))
    return record, {"store": None, "threads": torch.get_num_threads(), **options}


def _check_record(given: object) -> None:
    """Raise RbError with advice if the value is not a record but, for example, a network or a list."""
    if isinstance(given, dict):
        try:
            check_shape(given)
        except RbError as wrong:
            raise RbError(f"The record {wrong}") from None
        return
    what = f"a {type(given).__name__}"
    if callable(getattr(given, "state_dict", None)):
        what += ", which is a torch module, without data. Add data=(images, labels), DATASET or LOADER"
    elif callable(given):
        what += ", without data. Add data=(images, labels), DATASET or LOADER"
    elif isinstance(given, (list, tuple)):
        what += " with several items: call the function once for each record"
    raise RbError(
        f'Found {what}. Expected a record: a dict that describes one model, with its "arch" and, once it is'
        ' trained, its "checkpoint", such as rbtools.arch(13714)[0] or a line of rb-train.'
    )

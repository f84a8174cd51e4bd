"""The options that tools share; a command receives each group of options as one object."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from rbtools.cli import calls, streams
from rbtools.cli.build_context import PARTS, CommandContext, alone, build_context, terminal
from rbtools.cli.declare import F, OptionBundle, adding, declared, takes
from rbtools.cli.source import RecordSource
from rbtools.cli.terminal import Messages
from rbtools.errors import UsageError
from rbtools.execution.run import Run, Scaling, Selection, Settings
from rbtools.registry import param


def record_source(errors: str, **options: object) -> RecordSource:
    """The records of a tool. Raises UsageError if --errors or the folder of --checkpoint is invalid."""
    for word in errors.split(","):
        if word not in ("pass", "retry", "stop"):
            raise UsageError(f"--errors is '{word}'. Expected pass, retry or stop.")
    takes_checkpoint = "checkpoint" in options
    if takes_checkpoint:
        options["checkpoint"] = _file_of_weights(options["checkpoint"])  # type: ignore[arg-type]
    source = RecordSource(errors=errors, takes_checkpoint=takes_checkpoint, **options)  # type: ignore[arg-type]
    return streams.of_command().source(source)


def sink_source(errors: str, **options: object) -> RecordSource:
    """Like `record_source`, for a tool that reads all records and then writes something else."""
    if "retry" in errors.split(","):
        raise UsageError(
            f"--errors retry is for tools that pass every record on, but {calls.current().tool} reads all"
            " records and writes something else. Leave it out."
        )
    return record_source(errors, **options)


def _file_of_weights(path: str | None) -> str | None:
    """The file, or the file of weights in a folder from the Hugging Face Hub. Raises UsageError."""
    if path is None or not os.path.isdir(path):
        return path
    from rbtools.inputs import published_weights  # --help does not need it

    file = published_weights.in_folder(path)
    if file == path:
        names = " or ".join(published_weights.HUB_FILES)
        raise UsageError(
            f"--checkpoint {path} is a folder without {names}. Name a file, or use --weights DIR for"
            " published weights of the records' architectures."
        )
    return file


_STREAM = ("files", "errors", "allow_empty", "shard", "placeholders", "in_place")
_SINK = ("files", "errors", "allow_empty")
stop_param = param(
    "pass", "What to do with a bad line or a failed record: pass it on, or stop.", metavar="[pass|stop]"
)
stream_options = takes("source", RecordSource, *_STREAM, make=record_source)
source_options = takes(
    "source", RecordSource, *_STREAM, "checkpoint", "arch", "normalize", make=record_source
)
sink_options = takes("source", RecordSource, *_SINK, make=sink_source, errors=stop_param)
merging_sink_options = takes("source", RecordSource, *_SINK, "merge", make=sink_source, errors=stop_param)


def eps_param() -> Any:
    text = "Distances: in 1/255 for L-infinity (8, 8/255, 1-4, 1,2,8), for pixels in [0, 1] for L2."
    return param("8", text, metavar="LIST")


def detail_param() -> Any:
    text = "Keep confidences and the confusion matrix in the record, and logits in the store"
    return param(False, f"{text} (with many classes, all of these).", flags=("--detail",), rare=True)


_OF_TRAINING = {
    "precision": param(
        "auto",
        "Precision of the networks; weights and losses stay in float32. auto: bf16 if the hardware supports"
        " it and images have 16x16 pixels or more.",
        choices=("auto", "fp32", "bf16"),
    ),
    "prepare": param(
        "fold",
        "With fold, attack a copy of the network with folded BatchNorm, channels last, in --precision.",
        choices=("none", "fold"),
    ),
}
store_param = param(
    "rb-store", "Folder of stored results and checkpoints.", metavar="DIR", variable="RB_STORE"
)


def takes_run(
    *parts: type,
    without: Sequence[str] = (),
    make: Callable[..., CommandContext] = build_context,
    **changed: object,
) -> Callable[[F], F]:
    """A decorator that passes a run to a command, made from the options of these parts (default: all), except
    those in `without`."""
    options = {name: one for part in parts or PARTS for name, one in declared(part, changed).items()}
    for name in without:
        del options[name]
    return adding(OptionBundle("work", make, list(options.values())))


screen_options = takes("screen", Messages, make=terminal)
store_option = takes("store", Run, "store", make=lambda store: store, store=store_param)
_OF_EVALUATION = "split n indices weights member defend backward batch draws name_as".split()
seeking_options = takes_run(without=[*_OF_EVALUATION, "prepare"], precision=_OF_TRAINING["precision"])
train_options = takes_run(without=[*_OF_EVALUATION, "seed"], **_OF_TRAINING)
image_options = takes_run(
    *(Selection, Scaling, Settings, Messages),
    without="n indices weights member allow_code defend backward batch precision prepare draws".split(),
    make=alone,
)

"""A run: the options that all tools share, grouped by purpose.

A field made by `param` is also an option of the tools that take it (`takes_run` in cli/options.py). Where the
typed text differs from the value of the field, `build_context` there makes the value.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from rbtools.execution import ENGINES, LOCAL
from rbtools.execution.report import Report
from rbtools.execution.settings import Settings
from rbtools.registry import REQUIRED, param, rare_param
from rbtools.store import Store

_data, _rare_data = partial(param, group="Data"), partial(rare_param, group="Data")
_running, _rare_running = partial(param, group="Running"), partial(rare_param, group="Running")
_rare_model = partial(rare_param, group="Model")
_rare_kept = partial(rare_param, group="Records and store")


@dataclass(frozen=True)
class Selection:
    """The images and the weights that a run uses.

    `n` is the number of examples, which are the first ones in the fixed order of the split; None means all.
    `indices` is the name of a file, or the examples themselves (`datasets.indices.Indices`). `archive` is a
    folder of corrupted images that replace the clean images. `classes` are the network's classes that the
    images show, separated by commas. `preprocessing` describes how images are scaled and cropped, as in a
    record, and `normalize` is the [mean, std] of `--transform`. `weights` is a folder of published weights,
    and `member` is the name of one of several networks in a file. `allow_code` permits running networks that
    are the user's own code; no record and no file can set this. `defend` contains the stages before the
    network, made with `backward` (`defences.stages.Stages`).
    """

    dataset: str | None = _data(
        None,
        "Data set: a name such as digits, cifar10, cifar10:classes=cat/dog or cifar10-c:fog.3, or"
        " imagefolder:PATH, npz:PATH, parquet:PATH or python:MODULE:CLASS.  [default: the data set of the"
        " record, else digits]",
        metavar="NAME",
    )
    split: str = _data("test", "Split of the data set.")
    n: int | None = _data(None, "Use N images, in proportion to the classes.", bounds="[1, inf)", metavar="N")
    indices: Any = rare_param(
        None,
        "Use the images with these numbers in the split, such as 0-999 for the first 1,000, or those"
        " listed in FILE. FILE:NAME means the list NAME in this file. --n then uses N of them.",
        metavar="LIST|FILE",
        group="Data",
    )
    data_dir: str | None = _rare_data(
        None,
        "Folder of published data sets, packed or unpacked.  [default: data]",
        metavar="DIR",
        variable="RB_DATA",
    )
    download: bool = _rare_data(
        False, "Download a published data set that is missing in --data-dir.", flags=("--download",)
    )
    class_map: str | None = _rare_data(
        None,
        "JSON file that maps each class to its number in the network, if the network has another order of"
        " classes than the data set.",
        metavar="FILE",
    )
    classes: str | None = _rare_data(
        None,
        "If the data set contains only some classes of the network: names of class folders, or, for each"
        " class of the data set, its number or name in the network, such as 1,3,5.",
        metavar="LIST",
    )
    member: str | None = _rare_model(
        None, "Which weights to use if a file contains several: best, ema, cifar10/777 ...", metavar="NAME"
    )
    allow_code: bool = _rare_model(
        False,
        "Run the code of python:MODULE:NAME and of TorchScript and torch.export files, and use the"
        " commands and addresses of models that are named in records.",
        flags=("--allow-code",),
    )
    gradients_from: str | None = _rare_model(
        None,
        "Attack with the gradients of this checkpoint, such as the float form of a quantised model. The model"
        " itself decides on every image.",
        metavar="FILE",
    )
    defend: Any = rare_param(
        None,
        "Defence stages in front of the network, with their values: jpeg:75, quantize:4,"
        " python:MODULE:CLASS.",
        metavar="LIST",
        group="Model",
    )
    backward: str | None = _rare_model(
        None,
        "How gradients pass through the stages of --defend: none (zero gradient), identity (BPDA), or own"
        " (gradient of the stage).  [default: for each stage the choice that gives the strongest attack]",
        choices=("none", "identity", "own"),
    )
    weights: str | None = param(
        None,
        "Folder of published nasbench201 weights, for records without a checkpoint. The files in the folder"
        " are named by index: 000123-FULL.pth, or 000123.pickle.pbz2 of NATS-Bench.",
        metavar="DIR",
    )
    preprocessing: str | None = None
    normalize: Any = None
    archive: str | None = None


@dataclass(frozen=True)
class Scaling:
    """The options from which `Selection.preprocessing` and `Selection.normalize` are made."""

    resize: int | None = _data(
        None,
        "Scale the shorter side of each image to N pixels (with --squash, both sides), as torchvision and"
        " timm do it, and then --crop.",
        bounds="[1, 4096]",
        metavar="N",
    )
    crop: int | None = _data(
        None,
        "Cut a square with sides of N pixels out of the centre of each image.  [default with --squash: the"
        " size of --resize]",
        bounds="[1, 4096]",
        metavar="N",
    )
    interpolation: str | None = _rare_data(
        None, "Interpolation of --resize.  [default: bilinear]", choices=("bilinear", "bicubic")
    )
    squash: bool = _rare_data(
        False, "Scale both sides to --resize, which distorts images that are not square.", flags=("--squash",)
    )
    transform: str | None = _rare_data(
        None,
        "Scale and crop images like published weights, torchvision:ResNet18_Weights.IMAGENET1K_V1 or"
        " timm:resnet50.a1_in1k. Their normalisation is the default of --normalize.",
        metavar="torchvision:WEIGHTS|timm:NAME",
    )


@dataclass(frozen=True)
class Access:
    """How a model that only answers is reached (`rbtools.queries`). These options do not change its answers.

    `headers` are lines such as "Authorization: ...", which no record, log or error contains.
    """

    timeout: float = _rare_model(
        60.0, "Seconds to wait for the answer of --model-cmd or --model-url.", bounds="(0, inf)"
    )
    rate: float | None = _rare_model(
        None, "Send at most this many requests a second to --model-url, in each process.", bounds="(0, inf)"
    )
    budget: int | None = _rare_model(
        None,
        "Ask --model-cmd or --model-url about at most N images in this run. What was answered is kept.",
        bounds="[1, inf)",
        metavar="N",
    )
    headers: str | None = rare_param(
        None,
        "File with HTTP headers for --model-url, one NAME: VALUE a line. The variable RB_HEADERS may hold the"
        " headers themselves.",
        metavar="FILE",
        group="Model",
    )


@dataclass(frozen=True)
class Placement:
    """The place where work runs: engine, workers and their tasks.

    `engine` is the engine's name (`execution.ENGINES`), and `address` is the address of its cluster. `jobs`
    is the number of workers; 0 means that the engine decides (`Engine.own_capacity`). `jobs_per_gpu` is the
    number of jobs that share a GPU of a cluster. `worker` is the number of this worker, counted from 0.
    `shard` is (i, N), the part of a model's tiles that this process computes first, while other processes
    with the same store compute the other parts.
    """

    device: str = _running("auto", "Device to compute on: cpu, cuda, cuda:1 or auto.", metavar="NAME")
    jobs: int = _running(
        1,
        "Number of worker processes, spread over all GPUs; with auto, one process for each GPU, or for each"
        " core if there is no GPU.  [default: 1; on Ray, as many as fit the cluster]",
        metavar="N|auto",
        typed=None,
    )
    jobs_per_gpu: int = _rare_running(
        1,
        "Workers per GPU, with --jobs auto and on Ray.  [default: 1]",
        bounds="[1, inf)",
        metavar="N",
        typed=None,
    )
    engine: str = _rare_running(
        LOCAL,
        "Where the workers run: on this machine, or on a Ray cluster (pip install 'rbtools[ray]').",
        choices=tuple(ENGINES),
    )
    address: str | None = _rare_running(
        None,
        "Address of the Ray cluster.  [default: RAY_ADDRESS, else a cluster that runs on this machine, else a"
        " new cluster]",
        metavar="HOST:PORT",
        flags=("--ray-address",),
    )
    unordered: bool = _rare_running(
        False, "Write each record as soon as it is finished.", flags=("--unordered",)
    )
    threads: int | None = _rare_running(
        None,
        "Number of CPU threads for one model.  [default: 1 for nasbench201, else OMP_NUM_THREADS, else all"
        " cores, divided among the jobs]",
        bounds="[1, inf)",
    )
    worker: int = 0
    shard: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Run:
    """Everything that a job needs besides its record. Fields do not change after construction.

    `pool` is the engine whose workers share the tiles of an evaluation; without it, this process measures the
    tiles. `plan` collects what the store lacks in a dry run (`execution.dry_run.DryRun`). `name_as` is the
    name of a new entry, and `replace` is true if it replaces other entries with this name. `command` is the
    command line, without paths of this machine. `kept` contains what this process keeps from one call to the
    next, such as loaded networks, which all changed copies of the run share.
    """

    tool: str = "rbtools"
    store: Store = param(
        REQUIRED,
        "Folder of stored results and checkpoints; with none, results are neither read nor stored.",
        metavar="DIR|none",
        variable="RB_STORE",
        typed="rb-store",
        factory=lambda: Store(None),
        group="Records and store",
    )
    plan: Any = param(
        None,
        "Compute nothing; report how many results are missing and how many the store contains.",
        flags=("--dry-run",),
        typed=False,
        group="Records and store",
    )
    name_as: str | None = _rare_kept(
        None, "Name of the result in the record.", metavar="NAME", flags=("--as",)
    )
    replace: bool = _rare_kept(
        False,
        "Compute results again even if the store contains them, and overwrite results that were measured with"
        " another protocol.",
        flags=("--force",),
    )
    settings: Settings = field(default_factory=Settings)
    selection: Selection = field(default_factory=Selection)
    placement: Placement = field(default_factory=Placement)
    access: Access = field(default_factory=Access)
    report: Report = field(default_factory=Report)
    pool: Any = None
    command: str | None = None
    kept: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the run without the engine, so that a worker measures its tiles itself."""
        return {**self.__dict__, "pool": None, "kept": {}}

    def close(self) -> None:
        """Close what this process keeps and can be closed, such as the programs of models that answer."""
        for name, value in list(self.kept.items()):
            if hasattr(value, "close"):
                del self.kept[name]
                value.close()

    @property
    def labels(self) -> dict[str, str]:
        return {"tool": self.tool, **({} if self.command is None else {"command": self.command})}

    @classmethod
    def of(cls, tool: str = "rbtools", store: Store | None = None, **options: Any) -> Run:
        """A run with these options, named like the fields. Raises TypeError for an unknown option."""
        return cls(tool, Store(None) if store is None else store).changed(**options)

    def changed(self, **options: Any) -> Run:
        """A copy of the run with other values of some options, which may be fields of any part."""
        parts: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in _PART_OF:
                raise TypeError(
                    f"There is no option {name!r} of a run. The options are the fields of its parts, in"
                    " rbtools/execution/run.py."
                )
            parts.setdefault(_PART_OF[name], {})[name] = value
        own = parts.pop("run", {})
        changed = {part: replace(getattr(self, part), **values) for part, values in parts.items()}
        return replace(self, **own, **changed)


_PARTS = {
    **{"settings": Settings, "selection": Selection, "placement": Placement, "access": Access},
    **{"report": Report, "run": Run},
}
_PART_OF = {option.name: part for part, kind in _PARTS.items() for option in fields(kind)}

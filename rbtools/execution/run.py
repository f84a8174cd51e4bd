"""A run: the options that all tools share, grouped by purpose.

A field made by `param` is also an option of the tools that take it (`takes_run` in cli/options.py). If the
value of a field differs from what the user typed, `build_context` there converts it.
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

    `n` is the number of examples, taken from the start of the split's fixed order; None means all.
    `indices` is the name of a file, or the examples themselves (`datasets.indices.Indices`). `archive` is a
    folder of corrupted images that replace the clean images. `classes` are the classes of the network that
    occur in the data set, separated by commas. `preprocessing` describes how images are scaled and cropped,
    as in a record, and `normalize` is the [mean, std] of `--transform`. `weights` is a folder of published
    weights, and `member` is the name of one of several networks in a file. `allow_code` permits running
    networks that are the user's own code; no record and no file can set this. `defend` contains the stages
    before the network, made with `backward` (`defences.stages.Stages`).
    """

    dataset: str | None = _data(
        None,
        "Data set: a name such as digits, cifar10, cifar10:classes=cat/dog or cifar10-c:fog.3, or"
        " imagefolder:PATH, npz:PATH, parquet:PATH or python:MODULE:CLASS.  [default: the data set of the"
        " record, or else digits]",
        metavar="NAME",
    )
    split: str = _data("test", "Split of the data set.")
    n: int | None = _data(
        None, "Use N images, chosen in proportion to the classes.", bounds="[1, inf)", metavar="N"
    )
    indices: Any = rare_param(
        None,
        "Use the images with these numbers in the split, such as 0-999 for the first 1,000, or the images"
        " listed in FILE. FILE:NAME selects the list NAME in the file. --n then uses N of these images.",
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
        False, "Download a published data set if it is missing from --data-dir.", flags=("--download",)
    )
    class_map: str | None = _rare_data(
        None,
        "JSON file that maps each class to its number in the network, for networks whose order of classes"
        " differs from that of the data set.",
        metavar="FILE",
    )
    classes: str | None = _rare_data(
        None,
        "For data sets with only some of the network's classes: the names of the class folders, or the number"
        " or name in the network of each class of the data set, such as 1,3,5.",
        metavar="LIST",
    )
    member: str | None = _rare_model(
        None, "Weights to use if a file contains several: best, ema, cifar10/777 ...", metavar="NAME"
    )
    allow_code: bool = _rare_model(
        False,
        "Allow running the code of python:MODULE:NAME and of TorchScript and torch.export files, and using"
        " the commands and addresses of models in records.",
        flags=("--allow-code",),
    )
    gradients_from: str | None = _rare_model(
        None,
        "Use the gradients of this checkpoint, such as the float version of a quantised model, for attacks."
        " The model itself still classifies every image.",
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
    """The options that determine `Selection.preprocessing` and `Selection.normalize`."""

    resize: int | None = _data(
        None,
        "Scale the shorter side of each image (with --squash, both sides) to N pixels, as torchvision and"
        " timm do. --crop is applied afterwards.",
        bounds="[1, 4096]",
        metavar="N",
    )
    crop: int | None = _data(
        None,
        "Crop a square of N x N pixels from the centre of each image.  [default with --squash: the size of"
        " --resize]",
        bounds="[1, 4096]",
        metavar="N",
    )
    interpolation: str | None = _rare_data(
        None, "Interpolation for --resize.  [default: bilinear]", choices=("bilinear", "bicubic")
    )
    squash: bool = _rare_data(
        False, "Scale both sides to --resize, which distorts images that are not square.", flags=("--squash",)
    )
    transform: str | None = _rare_data(
        None,
        "Use the scaling and cropping of published weights: torchvision:ResNet18_Weights.IMAGENET1K_V1 or"
        " timm:resnet50.a1_in1k. Their normalisation is the default of --normalize.",
        metavar="torchvision:WEIGHTS|timm:NAME",
    )


@dataclass(frozen=True)
class Access:
    """The connection to a model that can only be queried (`rbtools.queries`). It does not change the answers.

    `headers` names a file of lines such as "Authorization: ..."; no record, log or error contains them.
    """

    timeout: float = _rare_model(
        60.0, "Seconds to wait for the answer of --model-cmd or --model-url.", bounds="(0, inf)"
    )
    rate: float | None = _rare_model(
        None, "Maximum number of requests per second to --model-url, in each process.", bounds="(0, inf)"
    )
    budget: int | None = _rare_model(
        None,
        "Query --model-cmd or --model-url for at most N images in this run. The answers are stored.",
        bounds="[1, inf)",
        metavar="N",
    )
    headers: str | None = rare_param(
        None,
        "File with HTTP headers for --model-url, one NAME: VALUE per line. Alternatively, the environment"
        " variable RB_HEADERS can contain the headers.",
        metavar="FILE",
        group="Model",
    )


@dataclass(frozen=True)
class Placement:
    """Where the work runs: the engine, its workers and their tasks.

    `engine` is the engine's name (`execution.ENGINES`), and `address` is the address of its cluster. `jobs`
    is the number of workers; 0 means that the engine decides (`Engine.own_capacity`). `jobs_per_gpu` is the
    number of jobs that share a GPU of a cluster. `worker` is the number of this worker, counted from 0.
    `shard` is (i, N): this process first computes part i of the N parts of a model's tiles, and other
    processes with the same store compute the other parts.
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
        "Address of the Ray cluster.  [default: RAY_ADDRESS, or else a cluster that runs on this machine, or"
        " else a new one]",
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
    tiles. In a dry run, `plan` collects the missing work (`execution.dry_run.DryRun`). `name_as` is the name
    of a new entry, and `replace` is true if it replaces other entries with this name. `command` is the
    command line without the paths of this machine. `kept` contains objects that this process reuses in later
    calls, such as loaded networks; all changed copies of the run share it.
    """

    tool: str = "rbtools"
    store: Store = param(
        REQUIRED,
        "Folder of stored results and checkpoints. With none, results are neither looked up nor stored.",
        metavar="DIR|none",
        variable="RB_STORE",
        typed="rb-store",
        factory=lambda: Store(None),
        group="Records and store",
    )
    plan: Any = param(
        None,
        "Compute nothing; only report how many results the store contains and how many are missing.",
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
        " a different protocol.",
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
        """Close the kept objects that can be closed, such as the programs of models that are queried."""
        for name, value in list(self.kept.items()):
            if hasattr(value, "close"):
                del self.kept[name]
                value.close()

    @property
    def labels(self) -> dict[str, str]:
        return {"tool": self.tool, **({} if self.command is None else {"command": self.command})}

    @classmethod
    def of(cls, tool: str = "rbtools", store: Store | None = None, **options: Any) -> Run:
        """A run with these options, named after the fields. Raises TypeError for an unknown option."""
        return cls(tool, Store(None) if store is None else store).changed(**options)

    def changed(self, **options: Any) -> Run:
        """A copy of the run with new values for some options, which may be fields of any part."""
        parts: dict[str, dict[str, Any]] = {}
        for name, value in options.items():
            if name not in _PART_OF:
                raise TypeError(
                    f"A run has no option {name!r}. Its options are the fields of its parts, in"
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

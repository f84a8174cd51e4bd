"""The options that all tools share that evaluate or train models: images, devices, workers, store."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.execution import ENGINES, LOCAL
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, as typed. Each tool has some of them."""

    quiet: bool = param(False, "Print only warnings and errors on stderr.", flags=("--quiet", "-q"))
    verbose: bool = param(
        False, "Print more on stderr, such as the seconds of each stage.", flags=("--verbose", "-v")
    )
    log: str | None = param(None, "Append events to FILE, one JSON object per line.", metavar="FILE")
    config: str | None = param(
        None,
        "YAML file with defaults for options, or none.  [default: rbtools.yaml in this folder, over"
        " rbtools/config.yaml in XDG_CONFIG_HOME]",
        metavar="FILE",
    )
    device: str = param("auto", "Device to compute on: cpu, cuda, cuda:1 or auto.", metavar="NAME")
    jobs: str | None = param(
        None,
        "Number of worker processes, spread over all GPUs; auto: one for each GPU, or without GPUs for each"
        " core.  [default: 1; on Ray, as many as fit the cluster]",
        metavar="N|auto",
    )
    jobs_per_gpu: int | None = param(
        None, "Workers per GPU, with --jobs auto and on Ray.  [default: 1]", bounds="[1, inf)", metavar="N"
    )
    engine: str = param(
        LOCAL,
        "Where the workers run: on this machine, or on a Ray cluster (pip install 'rbtools[ray]').",
        choices=tuple(ENGINES),
    )
    address: str | None = param(
        None,
        "The address of the Ray cluster.  [default: RAY_ADDRESS, else a cluster that runs on this machine,"
        " else a new one]",
        metavar="HOST:PORT",
        flags=("--ray-address",),
    )
    unordered: bool = param(
        False, "Write each record when it is finished, not in input order.", flags=("--unordered",)
    )
    threads: int | None = param(
        None,
        "CPU threads for one model.  [default: 1 for nasbench201, else OMP_NUM_THREADS, else all cores,"
        " shared by the jobs]",
        bounds="[1, inf)",
    )
    dataset: str | None = param(
        None,
        "Data set: a name such as digits, cifar10, cifar10:classes=cat/dog or cifar10-c:fog.3, or"
        " imagefolder:PATH, npz:PATH, parquet:PATH or python:MODULE:CLASS.  [default: the record's, else"
        " digits]",
        metavar="NAME",
    )
    data_dir: str | None = param(
        None,
        "Folder of published data sets; they may be packed.  [default: data]",
        metavar="DIR",
        variable="RB_DATA",
    )
    download: bool = param(
        False, "Download a missing published data set into --data-dir.", flags=("--download",)
    )
    class_map: str | None = param(
        None,
        "JSON file that maps each class to its number in the network, if the data set has another order.",
        metavar="FILE",
    )
    classes: str | None = param(
        None,
        "The classes of the network that are in the data set, if it lacks some: names of class folders, or"
        " the network's number or name for each class of the data, such as 1,3,5.",
        metavar="LIST",
    )
    allow_code: bool = param(
        False,
        "Allow the code of python:MODULE:NAME and of TorchScript and torch.export files to run.",
        flags=("--allow-code",),
    )
    seed: int = param(0, "Seed of all random numbers.", bounds="[0, inf)")
    precision: str = param(
        "auto",
        "Precision of attack searches; float32 decides on success. auto: bf16 if the hardware supports it.",
        choices=("auto", "fp32", "bf16"),
    )
    prepare: str = param(
        "fold",
        "fold: search on a copy of the network with folded BatchNorm, channels last, in --precision.",
        choices=("none", "fold"),
    )
    draws: int = param(
        20,
        "Draws for each decision on a randomised model; with 1 it is judged like a deterministic model.",
        bounds="[1, inf)",
        metavar="N",
    )
    defend: str | None = param(
        None,
        "Defence stages in front of the network, with their values: jpeg:75, quantize:4,"
        " python:MODULE:CLASS.",
        metavar="LIST",
    )
    backward: str | None = param(
        None,
        "Gradients of the stages of --defend: none (zero), identity (BPDA), or own (those of the stage)."
        "  [default: for each stage the choice that gives the strongest attack]",
        choices=("none", "identity", "own"),
    )
    split: str = param("test", "Split of the data set.")
    weights: str | None = param(
        None,
        "Folder of published nasbench201 weights, for records without a checkpoint. Its files are named by"
        " index: 000123-FULL.pth, or 000123.pickle.pbz2 of NATS-Bench.",
        metavar="DIR",
    )
    member: str | None = param(
        None, "The weights to use if a file has several: best, ema, cifar10/777 ...", metavar="NAME"
    )
    n: int | None = param(None, "Use N images, balanced over classes.", bounds="[1, inf)", metavar="N")
    indices: str | None = param(
        None,
        "Use the images with these numbers in the split (0-999: the first 1,000), or with the numbers in FILE"
        " (FILE:NAME: one of its lists). --n then uses N of them.",
        metavar="LIST|FILE",
    )
    batch: int | None = param(
        None, "Images per batch; changes the memory needed, not the results.", bounds="[1, inf)", metavar="N"
    )
    name_as: str | None = param(None, "Name of the result in the record.", metavar="NAME", flags=("--as",))
    store: str = param(
        "rb-store",
        "Folder of stored results and checkpoints; none: do not read or write stored results.",
        metavar="DIR|none",
        variable="RB_STORE",
    )
    force: bool = param(
        False,
        "Compute results again even if the store contains them, and overwrite results that were measured with"
        " another protocol.",
        flags=("--force",),
    )
    dry_run: bool = param(
        False,
        "Compute nothing; report how much is to compute and which results the store contains.",
        flags=("--dry-run",),
    )

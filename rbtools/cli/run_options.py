"""Which images, on what machine, kept where: what tools of models have in common."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.execution import ENGINES, LOCAL
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, as typed; each tool has some of them."""

    quiet: bool = param(False, "Print only warnings and errors on stderr.", flags=("--quiet", "-q"))
    verbose: bool = param(
        False, "Print more on stderr, such as the seconds of each stage.", flags=("--verbose", "-v")
    )
    log: str | None = param(None, "Append events to FILE, one JSON object per line.", metavar="FILE")
    config: str | None = param(
        None,
        "Defaults for options, as YAML; none for no file.  [default: rbtools.yaml here, over"
        " rbtools/config.yaml in XDG_CONFIG_HOME]",
        metavar="FILE",
    )
    device: str = param("auto", "cpu, cuda, cuda:1, or auto.", metavar="NAME")
    jobs: str | None = param(
        None,
        "Worker processes, spread over all GPUs; auto: one for each core, or for each GPU.  [default: 1; on"
        " Ray, as many as fit the cluster]",
        metavar="N|auto",
    )
    jobs_per_gpu: int | None = param(
        None, "Workers on each GPU with --jobs auto and on Ray.  [default: 1]", bounds="[1, inf)", metavar="N"
    )
    engine: str = param(
        LOCAL,
        "Where the workers run: on this machine, or on a Ray cluster (pip install 'rbtools[ray]').",
        choices=tuple(ENGINES),
    )
    address: str | None = param(
        None,
        "The address of the Ray cluster.  [default: RAY_ADDRESS, else one that runs on this machine, else a"
        " new one]",
        metavar="HOST:PORT",
        flags=("--ray-address",),
    )
    unordered: bool = param(
        False, "Write records as they finish, not in input order.", flags=("--unordered",)
    )
    threads: int | None = param(
        None,
        "CPU threads of one model.  [default: 1 for nasbench201, else OMP_NUM_THREADS, else all cores,"
        " which jobs share]",
        bounds="[1, inf)",
    )
    dataset: str | None = param(
        None,
        "digits, cifar10, cifar10:classes=cat/dog, cifar10-c:fog.3 ..., imagefolder:PATH, npz:PATH,"
        " parquet:PATH or python:MODULE:CLASS.  [default: the record's, else digits]",
        metavar="NAME",
    )
    data_dir: str | None = param(
        None,
        "Folder of published data sets, packed or not.  [default: data]",
        metavar="DIR",
        variable="RB_DATA",
    )
    download: bool = param(
        False, "Download a missing published data set into --data-dir.", flags=("--download",)
    )
    class_map: str | None = param(
        None,
        "JSON file from class to class number, if the checkpoint's order is not the data set's.",
        metavar="FILE",
    )
    classes: str | None = param(
        None,
        "The data set's images are of these classes of the network only: names of its class folders, or for"
        " each class the number or name that the network has for it, as in 1,3,5.",
        metavar="LIST",
    )
    allow_code: bool = param(
        False,
        "Let python:MODULE:NAME, TorchScript and torch.export files run: they are programs.",
        flags=("--allow-code",),
    )
    seed: int = param(0, "Seed of all random numbers.", bounds="[0, inf)")
    precision: str = param(
        "auto",
        "Precision of attack searches; success is decided in float32. auto: bf16 if the hardware supports"
        " it.",
        choices=("auto", "fp32", "bf16"),
    )
    prepare: str = param(
        "fold",
        "fold: search on a copy with BatchNorm folded, channels last and in --precision.",
        choices=("none", "fold"),
    )
    draws: int = param(
        20,
        "Draws for each verdict on a randomised model; 1 judges it by a single draw, like any other.",
        bounds="[1, inf)",
        metavar="N",
    )
    defend: str | None = param(
        None,
        "Stages in front of the network, each with its value: jpeg:75, quantize:4, python:MODULE:CLASS.",
        metavar="LIST",
    )
    backward: str | None = param(
        None,
        "How gradients pass the stages of --defend: none (zero), identity (BPDA), or own.  [default: for"
        " each stage what gives the strongest attack]",
        choices=("none", "identity", "own"),
    )
    split: str = param("test", "Which split to evaluate on.")
    weights: str | None = param(
        None,
        "For records without a checkpoint, published weights of nasbench201 by index: 000123-FULL.pth, or"
        " NATS-Bench's 000123.pickle.pbz2.",
        metavar="DIR",
    )
    member: str | None = param(
        None, "Which weights to use if a file has several: best, ema, cifar10/777 ...", metavar="NAME"
    )
    n: int | None = param(None, "Use N images, balanced over classes.", bounds="[1, inf)", metavar="N")
    indices: str | None = param(
        None,
        "Use the images with these numbers in the split (0-999 are its first 1,000), or with those in a FILE"
        " (FILE:NAME is one of its lists); --n takes N of them.",
        metavar="LIST|FILE",
    )
    batch: int | None = param(
        None, "Images at a time; changes memory, not results.", bounds="[1, inf)", metavar="N"
    )
    name_as: str | None = param(None, "Call the result NAME.", metavar="NAME", flags=("--as",))
    store: str = param(
        "rb-store",
        "Folder of stored results and checkpoints; none: neither write nor read one.",
        metavar="DIR|none",
        variable="RB_STORE",
    )
    force: bool = param(
        False,
        "Compute again what the store already has, and overwrite results that were measured with another"
        " protocol.",
        flags=("--force",),
    )
    dry_run: bool = param(
        False,
        "Compute nothing; report how much there is to compute and what the store has.",
        flags=("--dry-run",),
    )

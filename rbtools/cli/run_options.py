"""The options of all tools that evaluate or train models: images, devices, workers and store."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.execution import ENGINES, LOCAL
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, as the user typed them. Each tool has only some of these options."""

    quiet: bool = param(
        False, "Print only warnings and errors on stderr.", flags=("--quiet", "-q"), group="Messages and help"
    )
    verbose: bool = param(
        False,
        "Print more on stderr, such as the time of each stage in seconds.",
        flags=("--verbose", "-v"),
        group="Messages and help",
        rare=True,
    )
    log: str | None = param(
        None,
        "Append events to FILE, one JSON object per line.",
        metavar="FILE",
        group="Messages and help",
        rare=True,
    )
    config: str | None = param(
        None,
        "YAML file with defaults for options, or none.  [default: rbtools.yaml in the working directory,"
        " which overrides rbtools/config.yaml in XDG_CONFIG_HOME]",
        metavar="FILE",
        group="Messages and help",
        rare=True,
    )
    device: str = param(
        "auto", "Device to compute on: cpu, cuda, cuda:1 or auto.", metavar="NAME", group="Running"
    )
    jobs: str | None = param(
        None,
        "Number of worker processes, spread over all GPUs; with auto, one process for each GPU, or for each"
        " core if there is no GPU.  [default: 1; on Ray, as many as fit the cluster]",
        metavar="N|auto",
        group="Running",
    )
    jobs_per_gpu: int | None = param(
        None,
        "Workers per GPU, with --jobs auto and on Ray.  [default: 1]",
        bounds="[1, inf)",
        metavar="N",
        group="Running",
        rare=True,
    )
    engine: str = param(
        LOCAL,
        "Where the workers run: on this machine, or on a Ray cluster (pip install 'rbtools[ray]').",
        choices=tuple(ENGINES),
        group="Running",
        rare=True,
    )
    address: str | None = param(
        None,
        "Address of the Ray cluster.  [default: RAY_ADDRESS, else a cluster that runs on this machine, else a"
        " new cluster]",
        metavar="HOST:PORT",
        flags=("--ray-address",),
        group="Running",
        rare=True,
    )
    unordered: bool = param(
        False,
        "Write each record as soon as it is finished.",
        flags=("--unordered",),
        group="Running",
        rare=True,
    )
    threads: int | None = param(
        None,
        "Number of CPU threads for one model.  [default: 1 for nasbench201, else OMP_NUM_THREADS, else all"
        " cores, divided among the jobs]",
        bounds="[1, inf)",
        group="Running",
        rare=True,
    )
    dataset: str | None = param(
        None,
        "Data set: a name such as digits, cifar10, cifar10:classes=cat/dog or cifar10-c:fog.3, or"
        " imagefolder:PATH, npz:PATH, parquet:PATH or python:MODULE:CLASS.  [default: the data set of the"
        " record, else digits]",
        metavar="NAME",
        group="Data",
    )
    data_dir: str | None = param(
        None,
        "Folder of published data sets, packed or unpacked.  [default: data]",
        metavar="DIR",
        variable="RB_DATA",
        group="Data",
        rare=True,
    )
    download: bool = param(
        False,
        "Download a published data set that is missing in --data-dir.",
        flags=("--download",),
        group="Data",
        rare=True,
    )
    class_map: str | None = param(
        None,
        "JSON file that maps each class to its number in the network, if the network has another order of"
        " classes than the data set.",
        metavar="FILE",
        group="Data",
        rare=True,
    )
    classes: str | None = param(
        None,
        "Classes of the network that are in the data set, if the data set does not contain all of them: names"
        " of class folders, or for each class of the data set its number or name in the network, such as"
        " 1,3,5.",
        metavar="LIST",
        group="Data",
        rare=True,
    )
    resize: int | None = param(
        None,
        "Scale the shorter side of each image to N pixels (with --squash, both sides), as torchvision and"
        " timm do it, and then --crop.",
        bounds="[1, 4096]",
        metavar="N",
        group="Data",
    )
    crop: int | None = param(
        None,
        "Cut a square with sides of N pixels out of the centre of each image.  [default with --squash: the"
        " size of --resize]",
        bounds="[1, 4096]",
        metavar="N",
        group="Data",
    )
    interpolation: str | None = param(
        None,
        "Interpolation of --resize.  [default: bilinear]",
        choices=("bilinear", "bicubic"),
        group="Data",
        rare=True,
    )
    squash: bool = param(
        False,
        "Scale both sides to --resize, which distorts images that are not square.",
        flags=("--squash",),
        group="Data",
        rare=True,
    )
    transform: str | None = param(
        None,
        "Scale and crop images like published weights, torchvision:ResNet18_Weights.IMAGENET1K_V1 or"
        " timm:resnet50.a1_in1k. Their normalisation is the default of --normalize.",
        metavar="torchvision:WEIGHTS|timm:NAME",
        group="Data",
        rare=True,
    )
    allow_code: bool = param(
        False,
        "Allow the code of python:MODULE:NAME and of TorchScript and torch.export files to run.",
        flags=("--allow-code",),
        group="Model",
        rare=True,
    )
    seed: int = param(0, "Seed of all random numbers.", bounds="[0, inf)", group="Running")
    precision: str = param(
        "auto",
        "Precision of attack searches; float32 decides on success. auto: bf16 if the hardware supports it.",
        choices=("auto", "fp32", "bf16"),
        group="Running",
        rare=True,
    )
    prepare: str = param(
        "fold",
        "With fold, search on a copy of the network with folded BatchNorm, channels last, in --precision.",
        choices=("none", "fold"),
        group="Running",
        rare=True,
    )
    draws: int = param(
        20,
        "Number of random evaluations for each decision on a randomised model; with 1, the model is treated"
        " as deterministic.",
        bounds="[1, inf)",
        metavar="N",
        group="Model",
        rare=True,
    )
    defend: str | None = param(
        None,
        "Defence stages in front of the network, with their values: jpeg:75, quantize:4,"
        " python:MODULE:CLASS.",
        metavar="LIST",
        group="Model",
        rare=True,
    )
    backward: str | None = param(
        None,
        "How gradients pass through the stages of --defend: none (zero gradient), identity (BPDA), or own"
        " (gradient of the stage).  [default: for each stage the choice that gives the strongest attack]",
        choices=("none", "identity", "own"),
        group="Model",
        rare=True,
    )
    split: str = param("test", "Split of the data set.", group="Data")
    weights: str | None = param(
        None,
        "Folder of published nasbench201 weights, for records without a checkpoint. The files in the folder"
        " are named by index: 000123-FULL.pth, or 000123.pickle.pbz2 of NATS-Bench.",
        metavar="DIR",
    )
    member: str | None = param(
        None,
        "Which weights to use if a file contains several: best, ema, cifar10/777 ...",
        metavar="NAME",
        group="Model",
        rare=True,
    )
    n: int | None = param(
        None, "Use N images, in proportion to the classes.", bounds="[1, inf)", metavar="N", group="Data"
    )
    indices: str | None = param(
        None,
        "Use the images with these numbers in the split (0-999: the first 1,000), or the images listed in"
        " FILE (FILE:NAME: in the list NAME). --n then uses N of them.",
        metavar="LIST|FILE",
        group="Data",
        rare=True,
    )
    batch: int | None = param(
        None,
        "Images per batch; this affects memory, not results.",
        bounds="[1, inf)",
        metavar="N",
        group="Running",
        rare=True,
    )
    name_as: str | None = param(
        None,
        "Name of the result in the record.",
        metavar="NAME",
        flags=("--as",),
        group="Records and store",
        rare=True,
    )
    store: str = param(
        "rb-store",
        "Folder of stored results and checkpoints; with none, results are neither read nor stored.",
        metavar="DIR|none",
        variable="RB_STORE",
        group="Records and store",
    )
    force: bool = param(
        False,
        "Compute results again even if the store contains them, and overwrite results that were measured with"
        " another protocol.",
        flags=("--force",),
        group="Records and store",
        rare=True,
    )
    dry_run: bool = param(
        False,
        "Compute nothing; report how many results are missing and how many the store contains.",
        flags=("--dry-run",),
        group="Records and store",
    )

"""How a piece of work is run: where, with how much memory, and who is told about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rbtools.store import Store


def quiet(text: str) -> None:
    """Tell nobody."""
    return None


def _alone() -> None:
    return None


@dataclass
class Run:
    """The options that every tool shares.

    `weights` is a folder of published weights, `member` which of several in a file are meant. `allow_code`
    lets networks that are the user's own code run; no record and no file can say so.
    `progress` is told what is going on, in words; `remark` what people should know, a line each; `pulse`
    is called between units of work and raises when the work should stop (nobody reads the output any more).
    """

    tool: str
    store: Store = field(default_factory=lambda: Store(None))
    seed: int = 0
    device: str = "auto"
    batch: int | None = None
    threads: int | None = None
    dataset: str | None = None
    data_dir: str | None = None
    class_map: str | None = None
    download: bool = False
    split: str = "test"
    precision: str = "fp32"  # of searches: fp32, bf16, or auto, which the machine decides
    prepare: bool = True  # searches may run on a model made ready for it
    compile: bool = False
    n: int | None = None
    indices: Any = None  # a file's name, or the examples themselves (datasets.indices.Indices)
    archive: str | None = None  # a folder of corrupted images, which then need no clean ones
    name_as: str | None = None
    replace: bool = False
    weights: str | None = None
    member: str | None = None
    allow_code: bool = False
    engine: str = "local"
    ray_address: str | None = None
    jobs: int = 1  # with Ray 0 means as many as the cluster carries
    jobs_per_gpu: int = 1
    worker: int = 0
    unordered: bool = False
    progress: Callable[[str], None] = quiet
    remark: Callable[[str], None] = quiet
    pulse: Callable[[], None] = _alone

    def __getstate__(self) -> dict[str, Any]:
        """A run travels to another process without its callbacks, which belong to this one."""
        return {**self.__dict__, "progress": quiet, "remark": quiet, "pulse": _alone}

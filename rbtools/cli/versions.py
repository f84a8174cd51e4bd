"""`rb-NAME --version -v` prints the versions that a bug report needs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Iterator

from rbtools import __version__


def lines(tool: str) -> Iterator[str]:
    yield f"{tool} (rbtools) {__version__}"
    yield f"Python {platform.python_version()} ({platform.python_implementation()})"
    yield f"{platform.platform()}, {os.cpu_count()} cores"
    for package, extra in _packages():
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{package} is not installed" + (f" (extra {extra})" if extra else "")
    yield from _torch()


def _packages() -> Iterator[tuple[str, str | None]]:
    """The packages that rbtools requires, with their extras, except packages that only tests need."""
    seen: set[str] = set()
    try:
        requirements = importlib.metadata.requires("rbtools") or []
    except importlib.metadata.PackageNotFoundError:  # rbtools runs from a checkout that is not installed
        requirements = ["torch", "torchvision", "numpy"]
    for requirement in requirements:
        extra = re.search(r"extra == [\"'](.+?)[\"']", requirement)
        name = re.match(r"[\w.-]+", requirement)
        if name is None or name[0] in seen or (extra and extra[1] in ("test", "test-all", "dev")):
            continue
        seen.add(name[0])
        yield name[0], extra[1] if extra else None


def _torch() -> Iterator[str]:
    try:
        import torch
    except Exception as wrong:  # the installation may be broken; the report shows that
        yield f"torch cannot be imported: {type(wrong).__name__}: {wrong}"
        return
    yield f"torch {torch.__version__} computes on the CPU with {torch.backends.cpu.get_cpu_capability()}"
    if not torch.cuda.is_available():
        built = torch.version.cuda
        yield "CUDA is not available" + (f" (torch is built for {built})" if built else "")
        return
    for number in range(torch.cuda.device_count()):
        yield f"cuda:{number} is {torch.cuda.get_device_name(number)}, CUDA {torch.version.cuda}"

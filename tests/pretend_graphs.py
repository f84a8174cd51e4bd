"""A pretend recorder of CUDA graphs: what a graph has captured is computed again, and Python is not."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rbtools import graphs


class PretendGraph:
    """As torch.cuda.CUDAGraph: the operations of a pass, on the tensors that they were recorded with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def capture_begin(self, pool: Any, mode: str) -> None:
        self.recorder = _Recorder(self)
        self.recorder.__enter__()

    def capture_end(self) -> None:
        """A GPU does nothing during a capture: what was written is undone."""
        self.recorder.__exit__(None, None, None)
        for tensor, before in reversed(self.recorder.written):
            tensor.copy_(before)

    def replay(self) -> None:
        self.replays += 1
        with torch.no_grad():
            for operation, args, kwargs, output in self.calls:
                if operation._schema.is_mutable:
                    operation(*args, **kwargs)
                elif not operation.is_view:
                    _copy(output, operation(*args, **kwargs))


def _copy(old: Any, new: Any) -> None:
    if isinstance(old, Tensor):
        old.copy_(new)
    elif isinstance(old, tuple | list):
        for former, latter in zip(old, new, strict=True):
            _copy(former, latter)


class _Recorder(TorchDispatchMode):
    def __init__(self, graph: PretendGraph) -> None:
        super().__init__()
        self.graph = graph
        self.written: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        if func._schema.is_mutable:
            self.written.append((args[0].detach(), args[0].detach().clone()))
        output = func(*args, **(kwargs or {}))
        plain = tuple(arg.detach() if isinstance(arg, Tensor) else arg for arg in args)
        kept = output.detach() if isinstance(output, Tensor) else output
        self.graph.calls.append((func, plain, kwargs or {}, kept))
        return output


class Stream:
    """Streams do their work at once."""

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    wait_stream = wait_event


def install(monkeypatch: pytest.MonkeyPatch) -> list[PretendGraph]:
    """Let the CPU record graphs; returns all that are recorded from now on."""
    recorded: list[PretendGraph] = []

    def new() -> PretendGraph:
        recorded.append(PretendGraph())
        return recorded[-1]

    monkeypatch.setattr(graphs, "usable", lambda device: True)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", new)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 0))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    return recorded

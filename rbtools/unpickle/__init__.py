"""Reads untrusted pickles (checkpoints, data sets, training states) without running code in them. A pickle is
a program: it may call any function with any arguments. Functions of Python, NumPy and torch are not made for
hostile arguments: `numpy.ndarray(shape, "O", data)` makes objects at any addresses that the file chooses. So
the opcodes are interpreted here (machine.py), the few names that a file may use are replaced by functions of
this package, and arrays and tensors are made only from checked parts: a numeric type, a shape, strides, and
as many bytes as these need (containers.py, tensors.py). The files of torch.save are taken apart in
torch_files.py.
"""

from __future__ import annotations

import io
from typing import IO, Any

from rbtools.unpickle.machine import Damaged, Machine, NotTorch, Refused, UnusualTensor

__all__ = ["Damaged", "NotTorch", "Refused", "UnusualTensor", "arrays", "published", "torch_file"]

MOST_ARRAYS = 2**30  # the most bytes of a data set's pickle; the largest, CIFAR-100's, has 155 MB


def arrays(file: IO[bytes]) -> Any:
    """The value of a pickle of numeric arrays, containers, text and numbers, read up to its end.

    Text that Python 2 wrote is returned as bytes. Arrays may be read-only. Raises Refused if the pickle
    contains anything else, Damaged if it is no pickle.
    """
    from rbtools.unpickle.containers import NAMES

    return Machine(file, MOST_ARRAYS, NAMES, text=None).load()


def torch_file(file: IO[bytes]) -> Any:
    """The value in a seekable file of torch.save (zip, or the format before torch 1.6), tensors on the CPU.

    Equal to `torch.load(file, "cpu", weights_only=True)` for state dicts, optimiser states and notes of
    training scripts; also reads arrays, numbers and text of NumPy, and argparse's Namespace. Tensors that
    share memory in the file share it here. Raises Refused, Damaged, NotTorch, OSError.
    """
    from rbtools.unpickle import torch_files

    return torch_files.load(file)


def published(data: bytes) -> Any:
    """The value of a plain pickle with tensors, as NATS-Bench publishes them. Raises as `torch_file`."""
    from rbtools.unpickle import torch_files

    return Machine(io.BytesIO(data), len(data), torch_files.nested_names()).load()

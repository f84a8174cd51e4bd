"""Pickles of others (checkpoints, data sets, training states) read without running code in them.

A pickle is a program: it may name any function and have it called with any arguments. Functions of Python,
NumPy and torch are not made for hostile arguments: `numpy.ndarray(shape, "O", data)` alone makes objects of
any addresses that the file chooses. So the opcodes are interpreted here (machine.py), the few names that a
file may use are answered by functions of this package, and arrays and tensors are made from what has been
checked: a numeric type, a shape, strides, and as many bytes as those need (values.py, tensors.py). The files
of torch.save are taken apart in torch_files.py.
"""

from __future__ import annotations

import io
from typing import IO, Any

from rbtools.unpickle.machine import Damaged, Machine, NotTorch, Refused, UnusualTensor

__all__ = ["Damaged", "NotTorch", "Refused", "UnusualTensor", "arrays", "published", "torch_file"]

MOST_ARRAYS = 2**30  # bytes of a data set's pickle: the largest, CIFAR-100's, has 155 MB


def arrays(file: IO[bytes]) -> Any:
    """The value of a pickle of numeric arrays, containers, text and numbers, read up to its end.

    Text that Python 2 wrote comes as bytes. Arrays may be read-only. Raises Refused where the pickle asks for
    anything else, Damaged where it is none.
    """
    from rbtools.unpickle.containers import NAMES

    return Machine(file, MOST_ARRAYS, NAMES, text=None).load()


def torch_file(file: IO[bytes]) -> Any:
    """The value in a seekable file of torch.save (zip, or the format before torch 1.6), tensors on the CPU.

    Equal to `torch.load(file, "cpu", weights_only=True)` for state dicts, optimiser states and what training
    scripts note; arrays, numbers and text of NumPy and argparse's Namespace come, too. Tensors that share
    memory in the file share it here. Raises Refused, Damaged, NotTorch, OSError.
    """
    from rbtools.unpickle import torch_files

    return torch_files.load(file)


def published(data: bytes) -> Any:
    """The value of a plain pickle with tensors, as NATS-Bench publishes them. Raises as `torch_file`."""
    from rbtools.unpickle import torch_files

    return Machine(io.BytesIO(data), len(data), torch_files.nested_names()).load()

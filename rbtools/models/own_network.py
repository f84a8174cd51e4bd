"""Networks that a user's own function returns."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rbtools.errors import RbError, is_foreign, near, shown
from rbtools.models import Shape
from rbtools.models.answering import answering
from rbtools.spaces import own_code

# The usual names of a factory's parameters for the numbers of classes and of image channels.
_CLASSES = ("classes", "num_classes", "n_classes")
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)
_CHANNELS = ("in_channels", "in_chans", "channels")


def from_python(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """Returns the network that the user's function `arch["name"]` (written as module:factory) returns.

    Fields after the function's name (such as :width=16) are passed to the function's parameters of the same
    name. The number of classes, the number of channels and the shape of the images are passed to parameters
    with common names. Raises RbError if the function does not exist, fails, or returns no network.
    """
    text = str(arch.get("name"))
    if arch.get("code") not in (None, own_code.code_digest(text)):
        raise RbError(
            f"The module of python:{text} has changed since the record was created: the network may differ."
            f" Create the record again (rb-arch --arch python:{text} --allow-code)."
        )
    factory, options = _factory(text), own_code.own_options(text)
    accepted = inspect.signature(factory).parameters
    any_name = any(one.kind is one.VAR_KEYWORD for one in accepted.values())
    for given in options:
        if given not in accepted and not any_name:
            raise RbError(f"python:{text}: the function has no parameter {given}.{near(given, accepted)}")
    offered: dict[str, Any] = {"shape": shape, "input_shape": shape}
    offered |= dict.fromkeys(_CLASSES, classes) | dict.fromkeys(_CHANNELS, shape[0])
    with _own_code(text):
        network = factory(**{name: value for name, value in offered.items() if name in accepted} | options)
    if callable(network) and not isinstance(network, nn.Module):
        with _own_code(text):
            network = answering(network, torch.full((2, *shape), 0.5), classes) or network
    if not isinstance(network, nn.Module):
        raise RbError(
            f"python:{text} returned a {type(network).__name__}. Expected a torch.nn.Module, or a function"
            " from images to labels or scores."
        )
    network = _bare(network)
    if any(map(is_lazy, [*network.parameters(), *network.buffers()])):
        mode = network.training
        with _own_code(text), torch.no_grad():  # a batch gives lazy layers their sizes
            network.eval()(torch.zeros(2, *shape))
        network.train(mode)
    return network


def _bare(network: nn.Module) -> nn.Module:
    """Returns the module inside a torch wrapper or a module such as timm's ModelEmaV2."""
    while True:
        compiled, inner = (getattr(network, name, None) for name in ("_orig_mod", "module"))
        wraps = isinstance(network, _WRAPPERS) or type(network).forward is nn.Module.forward
        inner = compiled or (inner if wraps else None)
        if not isinstance(inner, nn.Module):
            return network
        network = inner


@contextlib.contextmanager
def _own_code(text: str) -> Iterator[None]:
    """Turn exceptions of the user's own code into RbError with the file and the line."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not is_foreign(error):
            raise
        module = text.partition(":")[0]
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            raise own_code.no_module(module) from None
        frames = traceback.extract_tb(error.__traceback__)[::-1]
        python = os.path.dirname(os.__file__)  # a SystemExit of argparse is blamed on its caller
        last = next((frame for frame in frames if not frame.filename.startswith(python)), frames[0])
        ours = last.filename == __file__ or last.filename.startswith("<")
        at = "" if ours else f" ({last.filename}, line {last.lineno})"
        raise RbError(
            f"python:{text} raised {type(error).__name__}: {shown(str(error), 200)}{at}. Fix the function:"
            " it is called with the classes, channels and shape if it has parameters for them."
        ) from error


def _factory(text: str) -> Callable[..., Any]:
    module_name, colon, attribute = text.partition(":")
    attribute = attribute.partition(":")[0]
    if not (colon and module_name and attribute):
        raise RbError(
            f"The architecture python:{text} does not name a function. Expected python:MODULE:FUNCTION."
        )
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)  # as with `python -m`, so that the user's own modules are found
    importlib.import_module("rbtools.torchvision_hook")  # the module may import torchvision
    try:
        with _own_code(text):
            module = importlib.import_module(module_name)
    finally:
        if added:
            sys.path.remove(here)
    factory = getattr(module, attribute, None)
    if not callable(factory):
        there = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
        raise RbError(f"The module {module_name} has no function {attribute}.{near(attribute, there)}")
    return factory

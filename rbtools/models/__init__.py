"""Build the network of an architecture record. Torch is imported when the first network is built.

To add a network family to the zoo, add one file, one line in `FAMILIES` and a form in `rbtools.spaces.zoo`.
To add a space, add one file with a function `from_arch(arch, *, classes, shape)` and one line in `SPACES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rbtools import spaces
from rbtools.errors import RbError
from rbtools.registry import Registry
from rbtools.spaces import zoo
from rbtools.spaces.zoo import TRACELESS

if TYPE_CHECKING:
    from torch import nn

Shape = tuple[int, int, int]  # shape of an image: channels, height, width

SPACES = Registry(
    "architecture space",
    {
        "nasbench201": "rbtools.models.cell_network:from_arch",
        "zoo": "rbtools.models:from_zoo",
        "fcnn": "rbtools.models.residual_network:from_arch",
        "rescnn": "rbtools.models.residual_network:from_arch",
        "python": "rbtools.models.own_network:from_python",
        "checkpoint": "rbtools.models.programs:from_arch",
    },
    group="networks",
    last=("python", "checkpoint"),
    closed=True,
)
# Variants of a network that tensor names and shapes do not distinguish. Maps a space to a function
# `arch -> [fields]`, which returns the fields of each variant, the usual variant first.
VARIANTS = Registry("space with variants", {}, group="variants", closed=True)
RUNS_CODE = ("python",)  # spaces whose networks run the user's own code

FAMILIES = Registry(
    "model family",
    {
        "simplecnn": "rbtools.models.plain:simplecnn",
        "vgg": "rbtools.models.plain:vgg",
        "resnet": "rbtools.models.resnet:resnet",
        "preactresnet": "rbtools.models.resnet:preactresnet",
        "wideresnet": "rbtools.models.resnet:wideresnet",
        "vit": "rbtools.models.vit:vit",
    },
)

# Formats of checkpoints that contain the graph or the code of their network (`programs.ProgramFormat`).
PROGRAMS = Registry(
    "format of programs",
    {
        "torch.export": "rbtools.models.programs:TorchExport",
        "torchscript": "rbtools.models.programs:TorchScript",
        "onnx": "rbtools.models.onnx_model:Onnx",
    },
)


def build(
    arch: Mapping[str, Any], *, classes: int, shape: tuple[int, int, int], allow_code: bool = False
) -> nn.Module:
    """Return the network of an architecture, freshly initialised under torch's current seed.

    `arch` is the architecture of a record, or the complete record. `classes` is the number of logits. `shape`
    is the shape (C, H, W) of an image. The network expects normalised images (see `normalize.Normalized`). If
    `allow_code` is true, a record of the space `python` may run the user's function that it names. Raises
    RbError for an unknown space or name, or if the network cannot be built for images of this shape.
    """
    if isinstance(arch.get("arch"), Mapping):
        arch = arch["arch"]
    space = arch.get("space")
    if not isinstance(space, str):
        raise RbError(
            f"The architecture {dict(arch)} has no field 'space'."
            f" Expected one of: {', '.join((*spaces.SPACES, *spaces.BY_NAME))};"
            " for example {'space': 'zoo', 'name': 'resnet18'}."
        )
    if classes < 1 or len(shape) != 3 or min(shape) < 1:
        raise RbError(
            f"A network cannot be built with {classes} classes for images of shape {tuple(shape)}."
            " Expected at least one class and a shape (channels, height, width)."
        )
    if space in RUNS_CODE and not allow_code:
        raise RbError(
            f"The architecture {space}:{arch.get('name')} runs Python code of your own. A record may not"
            " do this without your permission. If you trust it, add --allow-code."
        )
    return SPACES.load(space)(arch, classes=classes, shape=tuple(shape))


def from_zoo(arch: Mapping[str, Any], *, classes: int, shape: tuple[int, int, int]) -> nn.Module:
    fields = zoo.completed(arch, shape)
    form = zoo.form(fields["name"])
    network: nn.Module = FAMILIES.load(form.family)(form, fields, classes=classes, shape=shape)
    if any(field in fields for field in TRACELESS):
        from rbtools.models.resnet import set_traceless

        set_traceless(network, fields)
    return network

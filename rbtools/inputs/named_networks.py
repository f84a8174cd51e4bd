"""Networks and normalisations as users name them: the values of --arch and --normalize."""

from __future__ import annotations

import math
import os
from typing import Any

from rbtools import datasets, spaces
from rbtools.errors import RbError, UsageError, shown, unknown
from rbtools.registry import Registry
from rbtools.spaces import own_code
from rbtools.spaces.zoo import form as zoo_form

# For LEADERBOARD:NAME: a function `(name, classes) -> (--arch, --normalize, preprocessing)`, as typed.
LEADERBOARDS = Registry("leaderboard", {}, group="leaderboards", closed=True)
VARIANTS = ("stem", "pool", "shortcut", "activation", "eps")  # fields that select an architecture's variant
SIZES = ("side", "patch")  # side lengths of a vision transformer's images and patches, in pixels
RESIDUAL = ("fcnn", "rescnn")
# Spaces that can be prefixes of names.
_LISTED = [space for space in spaces.SPACES if space not in ("nasbench201", "zoo", *RESIDUAL)]
_NAMED = [space for space in spaces.BY_NAME if space != "checkpoint"]
PREFIXES = (*_LISTED, *_NAMED, *RESIDUAL)


def named_arch(text: str, classes: int | None = None) -> dict[str, Any]:
    """Parse a value of --arch: resnet18, nb201-13714, the string of a cell, torchvision:resnet50, timm:NAME,
    repo:OWNER/NAME, python:MODULE:FUNCTION:NAME=VALUE, or fcnn:relu/tanh+skip.

    A variant (preactresnet18:shortcut=input) or sizes (timm:vit_base_patch16_224:side=32:patch=4) may follow.
    LEADERBOARD:NAME is the entry of a leaderboard, with normalisation and preprocessing; `classes` chooses
    between several entries of this name. Raises RbError, with similar names, for an unknown name.
    """
    board, colon, entry = text.partition(":")
    if colon and board in LEADERBOARDS:
        name, normalize, preprocessing = LEADERBOARDS.load(board)(entry, classes)
        fields = named_arch(name)
        if normalize:
            fields["normalize"] = normalization(normalize)
        return {**fields, "preprocessing": preprocessing} if preprocessing else fields
    if text.startswith("python:"):
        return own_network(text.removeprefix("python:"))
    name, _, last = text.rpartition(":")
    field, equals, value = last.partition("=")
    if name and equals and field in SIZES:
        return _sized(named_arch(name), field, value)
    if name and equals and field in VARIANTS:
        described = {**named_arch(name), field: value}
        spaces.describe(described, 10, (3, 224, 224))  # this raises RbError if there is no such variant
        return described
    if name and equals and field.isidentifier():
        raise RbError(
            f"'{text}' ends in {field}=, which is not an option of architectures. Expected one of"
            f" {', '.join((*VARIANTS, *SIZES))}; channels, cells and classes are read from the weights."
        )
    space, colon, name = text.partition(":")
    if text.startswith("nb201-") or "|" in text:
        listed = spaces.space("nasbench201")
        described = listed.arch(listed.find(text))
        return {key: described[key] for key in ("space", "name", "index", "str")}
    if text.startswith("wrn-"):
        zoo_form(text)  # building it raises for an unknown name: the list is incomplete
        return {"space": "zoo", "name": text}
    if space not in PREFIXES and (own := _own_code(space, name)):
        raise RbError(
            f"'{shown(text)}' names Python code. For a network of your own, write --arch {shown(own)}"
            " --allow-code."
        )
    if not colon:
        zoo = spaces.space("zoo")
        return {"space": "zoo", "name": zoo.arch(zoo.find(text))["name"]}
    if space not in PREFIXES:
        raise unknown("space", space, PREFIXES)
    if not name:
        raise RbError(f"'{text}' does not name a network. Expected a name after the colon: {space}:NAME.")
    if space in RESIDUAL:
        described = spaces.describe({"space": space, "str": name, "inputs": "unit"}, 10, (3, 32, 32))
        return {key: described[key] for key in ("space", "name", "str", "inputs")}
    if space in spaces.SPACES:
        listed = spaces.space(space)
        name = listed.arch(listed.find(name))["name"]
    return {"space": space, "name": name}


def own_network(name: str) -> dict[str, Any]:
    """The `arch` of the user's own network, MODULE:FUNCTION[:NAME=VALUE]..., with the digest of its code.
    Raises RbError if `name` contains no function, or if the module does not exist."""
    digest = own_code.code_digest(name)
    options = own_code.own_options(name)
    return {"space": "python", "name": name, "code": digest, **({"options": options} if options else {})}


def _own_code(module: str, function: str) -> str | None:
    """The value of --arch for a user's function, made from mynet.py, mynet.py:build or mynet:build."""
    file = module if module.endswith(".py") else f"{module}.py"
    if file != module and not (function and os.path.isfile(file)):
        return None
    return f"python:{os.path.basename(file).removesuffix('.py')}:{function or 'FUNCTION'}"


def _sized(arch: dict[str, Any], field: str, value: str) -> dict[str, Any]:
    """The `arch` of a vision transformer with a different size of images or patches. Raises RbError."""
    name = arch["name"]
    if arch["space"] != "timm" and not (arch["space"] == "zoo" and zoo_form(name).family == "vit"):
        raise RbError(
            f"{name} has no option {field}=, which is for vision transformers: timm:NAME, vit-s, deit-ti ..."
        )
    if not (value.isascii() and value.isdigit() and 0 < int(value[:9]) < 10**5):
        raise RbError(f"The {field} of {name} is '{value}'. Expected a number of pixels, as in {field}=32.")
    return {**arch, field: int(value)}


def normalization(text: str) -> str | list[list[float]]:
    """Parse `none`, `per-image`, a name, or `MEAN STD` (one number, or one number per channel) into the form
    in which an architecture stores a normalisation. Raises UsageError if the text is invalid."""
    word = text.strip()
    if word in ("none", "per-image"):
        return word
    if word in datasets.NORMALIZATIONS:
        return [list(values) for values in datasets.NORMALIZATIONS[word]]
    parts = word.split()
    if not word or any(letter.isalpha() for letter in parts[0].replace("e", "")):
        raise unknown("normalization", word, ["none", "per-image", *datasets.NORMALIZATIONS], UsageError)
    if len(parts) != 2:
        raise UsageError(
            f"--normalize is '{text}'. Expected a mean and a standard deviation, such as 0.5 0.5 or"
            " 0.49,0.48,0.45 0.25,0.24,0.26; none; per-image; or one of:"
            f" {', '.join(datasets.NORMALIZATIONS)}."
        )
    pair: list[list[float]] = []
    for part in parts:
        try:
            pair.append([float(number) for number in part.split(",")])
        except ValueError:
            raise UsageError(
                f"--normalize has '{part}'. Expected numbers separated by commas, such as 0.49,0.48,0.45."
            ) from None
    mean, std = pair
    if len(mean) != len(std):
        raise UsageError(
            f"--normalize has {len(mean)} means and {len(std)} standard deviations. Give one of each per"
            " channel, or one of each for all channels."
        )
    if not all(map(math.isfinite, mean + std)) or min(std) <= 0:
        raise UsageError(
            f"--normalize {numbers(mean)} {numbers(std)} cannot normalise images. Expected finite numbers,"
            " and standard deviations above 0."
        )
    if max(map(abs, mean + std)) > 2:
        small = " ".join(numbers([value / 255 for value in values]) for values in pair)
        raise UsageError(
            f"--normalize {numbers(mean)} {numbers(std)} does not fit pixels in [0, 1]. Did you mean {small}?"
        )
    return pair


def numbers(values: list[float]) -> str:
    return ",".join(f"{value:.4g}" for value in values)

"""Published weights by name: hf:ORG/NAME[@REVISION], timm:NAME and torchvision:NAME[:WEIGHTS].

A name stands for a published weights file, with its architecture, its normalisation and the preprocessing of
its images. Files are loaded from the library's cache. With `--download`, missing files are downloaded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rbtools.errors import RbError, shown, unknown
from rbtools.inputs.published_weights import HUB_FILES, NamedWeights
from rbtools.lazy import torch
from rbtools.plain_files import read_text
from rbtools.zoo import external, transformers_config

if TYPE_CHECKING:
    from rbtools.execution.run import Run

WEIGHTS_FILE, CONFIG_FILE = "model.safetensors", "config.json"
_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
# the end of torchvision's file names: the first digits of the SHA-256
_HASHED = re.compile(r".*-([0-9a-f]{8,})\.pth")
_INTERPOLATIONS = ("bilinear", "bicubic")


# --- the Hub --------------------------------------------------------------------------------------------


def of_hub(name: str, run: Run) -> NamedWeights:
    """Returns the weights in a repository of the Hugging Face Hub, ORG/NAME or ORG/NAME@REVISION."""
    match = _REPOSITORY.fullmatch(name)
    # The Hub does not allow other first or last characters, double marks, or longer names.
    parts = [] if match is None or len(match[1]) > 96 else match[1].split("/")
    if not parts or any(part.strip("-.") != part or "--" in part or ".." in part for part in parts):
        here = os.path.exists(name) or name[:1] in "./~"
        folder = " For a local file, write --checkpoint FILE." if here else ""
        raise RbError(
            f"hf:{shown(name)} does not name a repository of the Hub. Expected hf:ORG/NAME or"
            f" hf:ORG/NAME@REVISION.{folder}"
        )
    assert match is not None
    repository, revision = match.groups()
    arch = _configured(f"hf:{repository}", lambda file: _hub_file(repository, revision, file, run))
    path = _hub_file(repository, revision, WEIGHTS_FILE, run)
    commit = Path(path).parent.name  # the cache has a folder for each commit
    return NamedWeights(path, arch, f"hf:{repository}@{commit}")


def beside(path: str) -> dict[str, Any]:
    """Returns the architecture in a configuration next to the file, as in downloads from the Hub, or {}.

    Raises RbError if the configuration is damaged or describes a network that cannot be built.
    """
    folder = Path(path).parent
    there = {file: (folder / file).is_file() for file in (CONFIG_FILE, transformers_config.IMAGES_FILE)}
    if Path(path).name not in HUB_FILES or not there[CONFIG_FILE]:
        return {}
    config = _config(str(folder), str(folder / CONFIG_FILE))
    of_timm = isinstance(config.get("architecture"), str)
    if not of_timm and not (isinstance(config.get("architectures"), list) and all(there.values())):
        return {}
    return _configured(str(folder), lambda file: str(folder / file))


def _configured(source: str, file: Callable[[str], str]) -> dict[str, Any]:
    """Returns the architecture in configuration files. `file` maps their names to their paths."""
    config = _config(source, file(CONFIG_FILE))
    of_timm = isinstance(config.get("architecture"), str)
    try:
        arch = (_of_timm_config if of_timm else transformers_config.network)(config, source)
        if not of_timm:
            arch |= transformers_config.images(_config(source, file(transformers_config.IMAGES_FILE)), source)
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        raise RbError(f"The configuration of {source} is damaged: {error!r}. Fetch it again.") from None
    return arch


def _hub_file(repository: str, revision: str | None, file: str, run: Run) -> str:
    try:
        import huggingface_hub
    except ImportError:
        raise RbError(
            f"hf:{repository} needs the package huggingface_hub, which is not installed. Install it with"
            " pip install 'rbtools[hub]'."
        ) from None
    cached = huggingface_hub.try_to_load_from_cache(repository, file, revision=revision)
    if isinstance(cached, str):
        return cached
    if not run.selection.download:
        raise RbError(
            f"The file {file} of hf:{repository} is not in the cache of the Hub. Add --download to a tool"
            f" that evaluates or trains, or fetch it with hf download {repository} {file}."
        )
    run.report.progress(f"download of {repository}")
    try:
        return str(huggingface_hub.hf_hub_download(repository, file, revision=revision))
    except huggingface_hub.errors.EntryNotFoundError:
        raise RbError(
            f"hf:{repository} has no file {file}. Weights are only read from {WEIGHTS_FILE}. Download"
            " another file yourself and name it with --checkpoint FILE."
        ) from None
    except (OSError, ValueError, huggingface_hub.errors.HfHubHTTPError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RbError(f"The file {file} of hf:{repository} cannot be downloaded: {reason}") from None


def _config(source: str, path: str) -> Mapping[str, Any]:
    file = Path(path).name
    try:
        config = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise RbError(f"The file {file} of {source} is damaged: {error}. Fetch it again.") from None
    if not isinstance(config, dict):
        raise RbError(f"The file {file} of {source} is not a JSON object. Fetch it again.")
    return config


def _of_timm_config(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    if config.get("model_args"):
        changed = shown(", ".join(map(str, config["model_args"])), 100)
        raise RbError(
            f"{source} is timm's {config['architecture']} with changed arguments ({changed}). Write a"
            " function that builds it, and add --arch python:MODULE:FUNCTION --allow-code."
        )
    name = config["architecture"]
    return {"space": "timm", "name": name, **_timm_images(config.get("pretrained_cfg", config))}


# --- timm and torchvision --------------------------------------------------------------------------------


def of_timm(name: str, run: Run) -> NamedWeights:
    """Returns the weights that timm loads for NAME or NAME.TAG."""
    cfg = _timm_config(name)
    if cfg is None or not cfg.hf_hub_id:
        where = f" They are at {cfg.url}" if cfg is not None and cfg.url else ""
        raise RbError(
            f"timm has no weights for {name} on the Hub.{where} Name a file with --arch timm:{name}"
            " --checkpoint FILE."
        )
    tag = f"{name.partition('.')[0]}.{cfg.tag}" if cfg.tag else name
    repository = f"{cfg.hf_hub_id}{tag}" if cfg.hf_hub_id.endswith("/") else cfg.hf_hub_id
    path = _hub_file(repository, None, WEIGHTS_FILE, run)
    arch = {"space": "timm", "name": name.partition(".")[0], **_timm_images(cfg.to_dict())}
    return NamedWeights(path, arch, f"hf:{repository}@{Path(path).parent.name}")


def timm_transform(name: str) -> dict[str, Any]:
    """Returns `normalize` and `preprocessing` of timm's NAME or NAME.TAG."""
    cfg = _timm_config(name)
    return {} if cfg is None else _timm_images(cfg.to_dict())


def _timm_config(name: str) -> Any:
    from rbtools.zoo.libraries import import_timm

    timm = import_timm()
    if not timm.is_model(name):
        raise unknown("timm model", name, timm.list_models())
    try:
        return timm.get_pretrained_cfg(name)
    except RuntimeError:
        raise unknown("timm model", name, timm.list_models(pretrained=True)) from None


def _timm_images(cfg: Mapping[str, Any]) -> dict[str, Any]:
    from rbtools.models import normalising

    fields: dict[str, Any] = {}
    if cfg.get("mean") and cfg.get("std"):
        fields["normalize"] = [[float(value) for value in cfg[key]] for key in ("mean", "std")]
    preprocessing = normalising.preprocessing(cfg)
    return fields if preprocessing is None else {**fields, "preprocessing": preprocessing}


def of_torchvision(name: str, run: Run) -> NamedWeights:
    """Returns the weights NAME:WEIGHTS, such as resnet50:IMAGENET1K_V2. NAME means its default weights."""
    from rbtools.models.torchvision_import import torchvision

    name, _, which = name.partition(":")
    about = external.torchvision(name)
    listed = torchvision.models.get_model_weights(name)
    if which and which not in listed.__members__:
        raise unknown(f"set of weights of torchvision's {name}", which, list(listed.__members__))
    weights = listed[which] if which else listed.DEFAULT
    path = Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
    _have(path, weights.url, f"torchvision:{name}:{weights.name}", run)
    arch = {"space": "torchvision", "name": about["name"], **_torchvision_images(weights)}
    return NamedWeights(str(path), arch, f"torchvision:{name}:{weights.name}")


def torchvision_transform(name: str) -> dict[str, Any]:
    """Returns `normalize` and `preprocessing` of torchvision's weights with that name, such as
    ResNet18_Weights.IMAGENET1K_V1."""
    from rbtools.models.torchvision_import import torchvision

    models = torchvision.models
    names = [
        str(one) for model in models.list_models(module=models) for one in models.get_model_weights(model)
    ]
    if name not in names:
        raise unknown("set of weights of torchvision", name, names)
    return _torchvision_images(models.get_weight(name))


def _torchvision_images(weights: Any) -> dict[str, Any]:
    images = weights.transforms()
    fields: dict[str, Any] = {"normalize": [images.mean, images.std]}
    (resized,), (cropped,) = images.resize_size, images.crop_size
    interpolation = images.interpolation.value
    if interpolation in _INTERPOLATIONS and cropped <= resized:
        fields["preprocessing"] = f"{interpolation}-{resized}-{cropped}"
    return fields


def _have(path: Path, url: str, name: str, run: Run) -> None:
    """Download a missing file with `--download`, and compare its SHA-256 with the prefix in its name."""
    if not path.is_file():
        if not run.selection.download:
            raise RbError(
                f"The weights {name} are not in torch's cache ({path}). Add --download to a tool that"
                f" evaluates, or fetch {url} yourself and put it there."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        run.report.progress(f"download of {name}")
        try:
            torch.hub.download_url_to_file(url, str(path), progress=False)
        except OSError as error:
            raise RbError(
                f"{url} cannot be downloaded: {error}. Check the network, or try again later."
            ) from None
    expected = _HASHED.fullmatch(path.name)
    if expected and not run.store.file_hash(path).startswith(f"sha256:{expected[1]}"):
        raise RbError(
            f"{path} is not the file that torchvision publishes as {name}. Remove it and try again."
        )

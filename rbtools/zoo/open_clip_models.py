"""CLIP models of the package open_clip as zero-shot classifiers (Radford et al., ICML 2021).

The logits are the scaled cosines between the embedding of an image and those of the classes; the embedding
of a class is the mean of its prompts'.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rbtools.errors import RbError, unknown
from rbtools.models import Shape
from rbtools.models.statistics import Known
from rbtools.spaces import prompts
from rbtools.zoo.libraries import resizing

AT_ONCE = 128  # prompts that are embedded together
QUICK_GELU = "-quickgelu"  # the end of the names of models with OpenAI's approximation of GELU


class ZeroShotCLIP(nn.Module):
    """Images (N, 3, H, W) -> logits (N, classes).

    clip: a model of open_clip. tokens: those of the prompts of each class, int64 (prompts, context). Its
    state is that of `clip`, so its tensors have open_clip's names; the embeddings of the classes are computed
    when weights are loaded. published: the normalisations of open_clip's weights. warnings: what its user has
    to check.
    """

    head: Tensor

    def __init__(
        self, clip: nn.Module, tokens: Sequence[Tensor], published: Sequence[Known], warnings: Sequence[str]
    ) -> None:
        super().__init__()
        self.clip: Any = clip
        self._tokens = list(tokens)
        self.register_buffer("head", torch.empty(0), persistent=False)
        self.published, self.warnings = list(published), list(warnings)

    def state_dict(self, *arguments: Any, **options: Any) -> Any:
        return self.clip.state_dict(*arguments, **options)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        result = self.clip.load_state_dict(state_dict, strict=strict, assign=assign)
        self.head = self._embedded()
        return result

    @torch.no_grad()
    def _embedded(self) -> Tensor:
        """The embeddings of the classes, float32 (classes, width), each of length 1."""
        training = self.clip.training
        self.clip.eval()
        device = self.clip.logit_scale.device
        parts = [
            self.clip.encode_text(part.to(device), normalize=True)
            for part in torch.cat(self._tokens).split(AT_ONCE)
        ]
        self.clip.train(training)
        of_classes = torch.cat(parts).split([len(tokens) for tokens in self._tokens])
        return F.normalize(torch.stack([one.mean(0) for one in of_classes]), dim=-1)

    def forward(self, images: Tensor) -> Tensor:
        if not self.head.numel():
            self.head = self._embedded()
        features = self.clip.encode_image(images, normalize=True)
        logits: Tensor = self.clip.logit_scale.exp() * features @ self.head.to(features.dtype).T
        bias = getattr(self.clip, "logit_bias", None)
        return logits if bias is None else logits + bias


def import_open_clip() -> Any:
    """The package open_clip. Raises RbError where it is not installed."""
    # open_clip imports torchvision, which fails where its compiled operators cannot be loaded.
    from rbtools.models.torchvision_import import torchvision  # noqa: F401

    try:
        import open_clip
    except ImportError:
        raise RbError(
            "This network needs the package open_clip, which is not installed. Install it with"
            " pip install 'rbtools[clip]'."
        ) from None
    return open_clip


def configuration(name: str) -> dict[str, Any]:
    """open_clip's configuration of a model. Raises RbError for an unknown name, and for a model whose text
    encoder or tokenizer the package does not contain.
    """
    open_clip = import_open_clip()
    if name not in open_clip.list_models():  # so that open_clip fetches nothing
        raise unknown("open_clip model", name, open_clip.list_models())
    config: dict[str, Any] = open_clip.get_model_config(name)
    text = config.get("text_cfg", {})
    elsewhere = next((text[key] for key in ("hf_model_name", "hf_tokenizer_name") if text.get(key)), None)
    if elsewhere:
        raise RbError(
            f"The text encoder of open_clip's {name} is {elsewhere} of the package transformers, which is not"
            " supported. Choose a model with CLIP's own, such as ViT-B-32."
        )
    return config


def from_arch(arch: Mapping[str, Any], *, classes: int, shape: Shape) -> nn.Module:
    """The zero-shot classifier of open_clip's model `arch["name"]` and the prompts in `arch["prompts_file"]`.

    Images of another size are resized to the model's. Raises RbError where open_clip is not installed or has
    no such model, and where the prompts have changed or are of another number of classes.
    """
    name, path = str(arch.get("name")), str(arch.get("prompts_file"))
    if shape[0] != 3:
        raise RbError(f"open_clip's {name} takes images with 3 channels, and these have {shape[0]}.")
    if arch.get("prompts") not in (None, prompts.digest(path)):
        raise RbError(
            f"The file of prompts {path} has changed since the record was made with it, so this would be"
            f" another network. Make the record anew (--arch open_clip:{name} --prompts {path})."
        )
    config, of_classes = configuration(name), prompts.read(path, classes)
    open_clip = import_open_clip()
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # open_clip warns that there are no weights yet
    try:
        clip = open_clip.create_model(name, pretrained=None, load_weights=False)
    finally:
        logging.disable(before)
    tokenizer = open_clip.get_tokenizer(name)
    tokens = [tokenizer(texts) for texts in of_classes]
    tags = open_clip.pretrained.list_pretrained_tags_by_model(name)
    weights = {tag: open_clip.get_pretrained_cfg(name, tag) for tag in tags}
    published = [(tuple(cfg["mean"]), tuple(cfg["std"])) for cfg in weights.values()]
    network = ZeroShotCLIP(clip, tokens, published, _warnings(name, weights))
    side = config["vision_cfg"].get("image_size", 224)
    side = side if isinstance(side, int) else side[0]
    network.pretrained_cfg = _images(clip, side)  # type: ignore[assignment]
    return resizing(network, side)


def _images(clip: Any, side: int) -> dict[str, Any]:
    """How the model's images are scaled and cropped, in the words of timm's configurations."""
    cfg = getattr(clip.visual, "preprocess_cfg", {})
    crop = "center" if cfg.get("resize_mode") == "shortest" else cfg.get("resize_mode")
    return {
        **{key: tuple(cfg[key]) for key in ("mean", "std") if key in cfg},
        "interpolation": cfg.get("interpolation"),
        "crop_pct": 1.0,
        "crop_mode": crop,
        "input_size": (3, side, side),
    }


def _warnings(name: str, weights: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A warning that weights with the same tensors need the other activation, if open_clip has such
    weights."""
    quick = [tag for tag, cfg in weights.items() if cfg.get("quick_gelu")]
    if name.endswith(QUICK_GELU) or not quick:
        return []
    listed = ", ".join(quick[:4]) + (", ..." if len(quick) > 4 else "")
    return [
        f"open_clip:{name} has GELU, and nothing in a file shows its activation. The weights"
        f" {listed} need --arch open_clip:{name}{QUICK_GELU}"
    ]

"""The vision transformer vit_small_patch16_224 in timm's version of 2020, which PRBench calls ViT-S.

In 2021, timm gave this name to DeiT's small network. The network of 2020 has width 768, depth 8, 8 heads and
an MLP of three times the width. Queries, keys and values have no biases, and LayerNorm has epsilon 1e-5.
Attention is scaled by the width of the network (768^-1/2) and not by the width of a head. The network has
48,754,408 parameters for 1000 classes (vision_transformer.py in timm 0.4.5), and 47,338,762 for 10 classes,
32x32 images and patches of 4 (vit_model_for_cifar in wellzline/PRBenchmark).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rbtools.lazy import nn

NAME = "vit_small_patch16_224_2020"
WIDTH = 768
URL = (
    "https://github.com/rwightman/pytorch-image-models/releases/download/v0.1-weights/"
    "vit_small_p16_224-15ec54c9.pth"
)
default_cfgs: dict[str, Any] = {  # timm's registry reads this name
    NAME: {
        "url": URL,
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.9,
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
}


def vit_small_patch16_224_2020(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """Build the network. `kwargs` are arguments of timm's vision transformers (img_size, patch_size ...)."""
    from timm.models import build_model_with_cfg
    from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn

    form = {"embed_dim": WIDTH, "depth": 8, "num_heads": 8, "mlp_ratio": 3.0, "qkv_bias": False}
    network: nn.Module = build_model_with_cfg(
        VisionTransformer,
        NAME,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        **{"patch_size": 16, "norm_layer": partial(nn.LayerNorm, eps=1e-5), **form, **kwargs},
    )
    for block in network.blocks:  # type: ignore[union-attr]
        block.attn.scale = WIDTH**-0.5
        block.attn.fused_attn = False  # the fused operator would scale by the width of a head
    return network


def register(timm: Any) -> None:
    if not timm.is_model(NAME):
        timm.models.register_model(vit_small_patch16_224_2020)

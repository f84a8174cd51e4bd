"""Image classifiers of the package transformers: their logits and ours, one JSON line a network.

    python bench/transformers_networks.py FOLDER [--only TEXT]

FOLDER is where the package is: `pip install --target FOLDER --no-deps transformers tokenizers regex`. Each
network gets random weights, `save_pretrained` writes it into a cache of the Hub with the preprocessing that
its authors publish, and rbtools reads it as `hf:me/NAME`. `difference` is that of the logits on two images
in float64, as a share of the largest logit; what differs above rounding is the epsilon of LayerNorm, 1e-12
there and 1e-6 here. Networks that have no counterpart here are `refused`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rbtools.models.torchvision_import import torchvision  # noqa: F401  (transformers imports it)

COMMIT = "0" * 40
EQUAL = 2e-5


def networks(transformers: Any) -> dict[str, tuple[Callable[[], nn.Module], Any]]:
    """{name: its class with the published sizes, and the class of its preprocessing}."""

    def of(kind: str, suffix: str = "", **sizes: Any) -> Callable[[], nn.Module]:
        config = getattr(transformers, f"{kind}Config")
        network = getattr(transformers, f"{kind}ForImageClassification{suffix}")
        return lambda: network(config(num_labels=1000, **sizes))

    def vit(width: int, depth: int, **more: Any) -> dict[str, Any]:
        heads = {"num_hidden_layers": depth, "num_attention_heads": width // 64}
        return {"hidden_size": width, "intermediate_size": 4 * width, **heads, **more}

    teacher = "WithTeacher"
    basic, wide = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}, [128, 256, 512, 1024]
    images = {name: getattr(transformers, f"{name}ImageProcessor") for name in ("ViT", "DeiT", "ConvNext")}
    return {
        "deit-tiny": (of("ViT", **vit(192, 12)), images["DeiT"]),
        "deit-small": (of("ViT", **vit(384, 12)), images["DeiT"]),
        "vit-base-patch16-224": (of("ViT", **vit(768, 12)), images["ViT"]),
        "vit-base-patch32-384": (of("ViT", **vit(768, 12, patch_size=32, image_size=384)), images["ViT"]),
        "vit-large-patch16-224": (of("ViT", **vit(1024, 24)), images["ViT"]),
        "vit-tiny-epsilon-1e-6": (of("ViT", **vit(192, 12, layer_norm_eps=1e-6)), images["ViT"]),
        "vit-of-eight-heads": (of("ViT", **{**vit(768, 12), "num_attention_heads": 8}), images["ViT"]),
        "vit-with-relu": (of("ViT", **vit(192, 12, hidden_act="relu")), images["ViT"]),
        "deit-tiny-distilled": (of("DeiT", teacher, **vit(192, 12)), images["DeiT"]),
        "deit-base-distilled-384": (of("DeiT", teacher, **vit(768, 12, image_size=384)), images["DeiT"]),
        "deit-without-teacher": (of("DeiT", **vit(192, 12)), images["DeiT"]),
        "resnet-18": (of("ResNet", depths=[2, 2, 2, 2], **basic), images["ConvNext"]),
        "resnet-34": (of("ResNet", depths=[3, 4, 6, 3], **basic), images["ConvNext"]),
        "resnet-50": (of("ResNet"), images["ConvNext"]),
        "resnet-101": (of("ResNet", depths=[3, 4, 23, 3]), images["ConvNext"]),
        "resnet-152": (of("ResNet", depths=[3, 8, 36, 3]), images["ConvNext"]),
        "convnext-tiny": (of("ConvNext"), images["ConvNext"]),
        "convnext-base": (of("ConvNext", depths=[3, 3, 27, 3], hidden_sizes=wide), images["ConvNext"]),
        "convnextv2-atto": (
            of("ConvNextV2", depths=[2, 2, 6, 2], hidden_sizes=[40, 80, 160, 320]),
            images["ConvNext"],
        ),
        "convnextv2-tiny": (of("ConvNextV2"), images["ConvNext"]),
        "swin-tiny": (of("Swin"), images["ViT"]),
        "swin-small": (of("Swin", depths=[2, 2, 18, 2]), images["ViT"]),
        "swin-base": (
            of("Swin", embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]),
            images["ViT"],
        ),
        "regnet-y-040": (
            of("RegNet", depths=[2, 6, 12, 2], hidden_sizes=[128, 192, 512, 1088], groups_width=64),
            images["ConvNext"],
        ),
        "regnet-x-002": (
            of(
                "RegNet", depths=[1, 1, 4, 7], hidden_sizes=[24, 56, 152, 368], groups_width=8, layer_type="x"
            ),
            images["ConvNext"],
        ),
        "mobilenet_v2": (of("MobileNetV2"), images["ConvNext"]),
        "beit-base": (of("Beit"), images["ViT"]),
    }


@torch.no_grad()
def randomised(network: nn.Module) -> nn.Module:
    """Random numbers in every tensor, so that none is left as it starts."""
    torch.manual_seed(1)
    for key, value in network.state_dict().items():
        if not value.is_floating_point():
            continue
        if key.endswith("running_var"):
            value.uniform_(0.5, 1.5)
        elif value.ndim > 1 and not key.endswith(("token", "position_embeddings", "bias_table")):
            value.normal_(0, (2 / value[0].numel()) ** 0.5)
        else:
            value.add_(torch.randn(value.shape) * 0.1)
    return network.eval()


@torch.no_grad()
def compared(name: str, make: Callable[[], nn.Module], images_class: Any, folder: Path) -> dict[str, Any]:
    from rbtools.errors import RbError
    from rbtools.execution.run import Run
    from rbtools.inputs.checkpoints import CheckpointHints, record_of
    from rbtools.models import checkpoint

    network: Any = randomised(make())
    side = getattr(network.config, "image_size", 224)
    snapshot = folder / f"models--me--{name}" / "snapshots" / COMMIT
    (folder / f"models--me--{name}" / "refs").mkdir(parents=True)
    (folder / f"models--me--{name}" / "refs" / "main").write_text(COMMIT)
    pair = [[0.4, 0.5, 0.6], [0.2, 0.3, 0.4]]
    size = {"size": {"shortest_edge": 224}} if hasattr(images_class, "crop_pct") else {}
    images = images_class(image_mean=pair[0], image_std=pair[1], **size)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        network.save_pretrained(snapshot)
        images.save_pretrained(snapshot)
    pixels = torch.rand(2, 3, side, side, dtype=torch.float64)
    mean, std = (torch.tensor(values, dtype=torch.float32).view(3, 1, 1).double() for values in pair)
    expected: Tensor = network.double()((pixels - mean) / std).logits
    start = time.perf_counter()
    try:
        record = record_of(f"hf:me/{name}", CheckpointHints(), Run.of("bench"), with_data=False)
        model, arch, _ = checkpoint.load(
            snapshot / "model.safetensors", record["arch"], shape=(3, side, side)
        )
    except RbError as error:
        return {"name": name, "verdict": "refused", "reason": str(error)}
    seconds = time.perf_counter() - start
    difference = float((model.double()(pixels) - expected).abs().max() / expected.abs().max())
    return {
        "name": name,
        "verdict": "equal" if difference <= EQUAL else "wrong",
        "difference": float(f"{difference:.2g}"),
        "arch": f"{arch['space']}:{arch['name']}",
        "preprocessing": arch.get("preprocessing"),
        "normalised": arch.get("normalize") == pair,
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    sys.path.append(options.folder)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    with tempfile.TemporaryDirectory() as cache:
        import huggingface_hub
        import transformers

        huggingface_hub.constants.HF_HUB_CACHE = cache
        for name, (make, images_class) in networks(transformers).items():
            if options.only in name:
                print(json.dumps(compared(name, make, images_class, Path(cache))), flush=True)

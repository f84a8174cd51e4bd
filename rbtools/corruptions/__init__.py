"""Common corruptions: the ways photographs go wrong, at five severities each.

A corruption is called as `corruption(images, severity, draws)`. Images are float32 (N, C, H, W) in
[0, 1]; what comes back is too, on the grid of 256 grey levels on which the published archives lie.
"""

from __future__ import annotations

from rbtools.registry import Registry

CORRUPTIONS = Registry(
    "corruption",
    {
        "gaussian_noise": "rbtools.corruptions.gaussian_noise:GaussianNoise",
        "brightness": "rbtools.corruptions.brightness:Brightness",
        "contrast": "rbtools.corruptions.contrast:Contrast",
        "defocus_blur": "rbtools.corruptions.defocus_blur:DefocusBlur",
    },
)

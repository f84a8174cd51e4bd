"""Probabilistic robustness: noise distributions, and statistics of noisy copies.

`estimate`, `mixing`, `intervals` and `sequential` use neither models nor tensors.
"""

from __future__ import annotations

from rbtools.registry import Registry

NOISES = Registry(
    "noise",
    {
        "uniform": "rbtools.probabilistic.distributions:Uniform",
        "gaussian": "rbtools.probabilistic.distributions:Gaussian",
        "laplace": "rbtools.probabilistic.distributions:Laplace",
        "rotation": "rbtools.attacks.spatial:Rotation",
        "translation": "rbtools.attacks.spatial:Translation",
        "affine": "rbtools.attacks.zoom:AffineNoise",
        "brightness": "rbtools.attacks.color:BrightnessNoise",
        "contrast": "rbtools.attacks.color:ContrastNoise",
        "hue": "rbtools.attacks.color:HueNoise",
        "blur": "rbtools.attacks.blur:BlurNoise",
        "patch": "rbtools.attacks.patch:PatchNoise",
        "corruption": "rbtools.corruptions.corruption_noise:CorruptionNoise",
    },
)

"""Common corruptions: typical degradations of photographs, each at five severities."""

from __future__ import annotations

from rbtools.registry import Registry

CORRUPTIONS = Registry(
    "corruption",
    {
        "gaussian_noise": "rbtools.corruptions.gaussian_noise:GaussianNoise",
        "shot_noise": "rbtools.corruptions.shot_noise:ShotNoise",
        "impulse_noise": "rbtools.corruptions.impulse_noise:ImpulseNoise",
        "defocus_blur": "rbtools.corruptions.defocus_blur:DefocusBlur",
        "glass_blur": "rbtools.corruptions.glass_blur:GlassBlur",
        "motion_blur": "rbtools.corruptions.motion_blur:MotionBlur",
        "zoom_blur": "rbtools.corruptions.zoom_blur:ZoomBlur",
        "snow": "rbtools.corruptions.snow:Snow",
        "frost": "rbtools.corruptions.frost:Frost",
        "fog": "rbtools.corruptions.fog:Fog",
        "brightness": "rbtools.corruptions.brightness:Brightness",
        "contrast": "rbtools.corruptions.contrast:Contrast",
        "elastic_transform": "rbtools.corruptions.elastic_transform:ElasticTransform",
        "pixelate": "rbtools.corruptions.pixelate:Pixelate",
        "jpeg_compression": "rbtools.corruptions.jpeg_compression:JpegCompression",
        "speckle_noise": "rbtools.corruptions.speckle_noise:SpeckleNoise",
        "gaussian_blur": "rbtools.corruptions.gaussian_blur:GaussianBlur",
        "spatter": "rbtools.corruptions.spatter:Spatter",
        "saturate": "rbtools.corruptions.saturate:Saturate",
    },
    # These are meant for validation; the benchmark's means leave them out.
    apart=("speckle_noise", "gaussian_blur", "spatter", "saturate"),
    group="corruptions",
)

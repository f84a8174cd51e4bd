"""Published normalisation constants and their names for `--normalize`."""

from __future__ import annotations

from typing import NamedTuple


class Normalization(NamedTuple):
    """Mean and standard deviation of each channel, on the [0, 1] scale."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


def _of_255(mean: tuple[float, ...], std: tuple[float, ...]) -> Normalization:
    return Normalization(tuple(value / 255 for value in mean), tuple(value / 255 for value in std))


NORMALIZATIONS: dict[str, Normalization] = {
    # AutoDL-Projects, and therefore all weights of NAS-Bench-201; also NAS-RobBench-201.
    "cifar10": _of_255((125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
    "cifar100": _of_255((129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
    "imagenet16-120": _of_255((122.68, 116.66, 104.01), (63.22, 61.26, 65.09)),
    # locuslab/robust_overfitting (CIFAR-10).
    "rice": Normalization((0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)),
    # kuangliu/pytorch-cifar. These are not the standard deviations of the pixels, but many
    # checkpoints were trained with them.
    "kuangliu": Normalization((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    # Mean and standard deviation of the pixels of the train split, in the usual rounding (CINIC-10's authors'
    # own for CINIC-10).
    "mnist": Normalization((0.1307,), (0.3081,)),
    "svhn": Normalization((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "cinic10": Normalization((0.47889522, 0.47227842, 0.43047404), (0.24205776, 0.23828046, 0.25874835)),
    "tinyimagenet": Normalization((0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
    # Pixels from -1 to 1, which many networks take, whatever their training data.
    "half": Normalization((0.5,), (0.5,)),
    # torchvision's pretrained models.
    "imagenet": Normalization((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}

# The numbers of classes of these data sets; "half" does not belong to a data set.
CLASSES = {
    **dict.fromkeys(("cifar10", "rice", "kuangliu", "mnist", "svhn", "cinic10"), 10),
    "cifar100": 100,
    "imagenet16-120": 120,
    "tinyimagenet": 200,
    "imagenet": 1000,
}

"""The mean over random crops."""

from __future__ import annotations

from dataclasses import dataclass

from rbtools.defences.base import Defence, picked
from rbtools.lazy import F, Tensor, torch
from rbtools.registry import param


@dataclass(frozen=True, kw_only=True)
class CropEnsemble(Defence):
    """The mean of the logits over random crops, each resized to the image's size (Guo et al., Countering
    adversarial images using input transformations, ICLR 2018: 30 crops of 90 in 224 pixels).
    """

    name = "crop-ensemble"

    crops: int = param(30, "Number of crops.", check="count")
    share: float = param(0.402, "Side of a crop, as a share of the image's.", check="fraction")

    @property
    def copies(self) -> int:
        return self.crops

    def __call__(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        place = torch.rand(len(images), self.crops, 2, device=images.device).flatten(0, 1)
        rows, columns = self._lines(height, place[:, 0]), self._lines(width, place[:, 1])
        crops = picked(images.repeat_interleave(self.crops, 0), rows, columns)
        return F.interpolate(crops, (height, width), mode="bilinear", align_corners=False)

    def _lines(self, side: int, place: Tensor) -> Tensor:
        """The lines (N, h) of crops whose place is uniform in [0, 1)."""
        length = max(round(self.share * side), 1)
        start = (place * (side - length + 1)).long()
        return start[:, None] + torch.arange(length, device=place.device)

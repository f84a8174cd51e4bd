"""Randomised smoothing, which certifies the smoothed classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rbtools import check_input
from rbtools.certification import smoothed_counts
from rbtools.errors import RbError
from rbtools.lazy import Tensor, np, torch
from rbtools.probabilistic import smoothing
from rbtools.registry import Registered, param
from rbtools.rng.draws import of_images


@dataclass(frozen=True, kw_only=True)
class Smooth(Registered):
    """Randomised smoothing (Cohen, Rosenfeld and Kolter 2019, arXiv:1902.02918): L2 certificates by sampling.

    The certificates are not for the network itself, which attacks evaluate, but for the smoothed classifier.
    This classifier returns the network's most frequent class under Gaussian noise with the standard deviation
    --sigma, or abstains. The best results are obtained if the network is trained on this noise: rb-train
    --method corruption --noise gaussian --sigma 0.25. For each image, some noisy copies select the class, and
    further copies bound the probability of this class. A certificate is wrong with probability at most
    --alpha. The network classifies the copies in float32. The certificate does not cover rounding errors in
    the noise and the network.

    With --adaptive, sampling of an image stops as soon as all distances in --eps are decided. With
    --adaptive, --alpha is the error probability of all certificates of an image together. A few images close
    to a limit are then not certified, although they would be with all copies.
    """

    name: ClassVar[str] = "smooth"
    version: ClassVar[int] = 1
    norm: ClassVar[str] = "l2"
    default_eps: ClassVar[str] = "0,0.25,0.5,0.75,1"
    # The names of the random number streams.
    SELECT: ClassVar[str] = "smooth.select"
    ESTIMATE: ClassVar[str] = "smooth.estimate"

    sigma: float = param(0.25, "Standard deviation of the noise, for pixels in [0, 1].", check="positive")
    alpha: float = param(0.001, "Error probability of an image's certificates.", check="positive")
    samples: int = param(
        100_000, "Number of noisy copies per image (with --adaptive, the maximum).", bounds=f"[1, {1 << 23}]"
    )
    select: int = param(100, "Number of additional noisy copies that select the class.", check="positive")
    adaptive: bool = param(
        False, "Stop sampling an image as soon as all distances in --eps are decided.", flags=("--adaptive",)
    )

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 0.5:
            raise RbError(f"alpha is {self.alpha:g}. It must be between 0 and 0.5, such as 0.001.")

    def __call__(
        self,
        model: Callable[[Tensor], Tensor],
        images: Tensor,
        labels: Tensor,
        *,
        eps: Sequence[float] | None = None,
        seed: int = 0,
        examples: Tensor | None = None,
        batch: int | None = None,
    ) -> Tensor:
        """The certified L2 radius of each image, float64 (N,).

        For example, `Smooth(sigma=0.25)(model, images, labels)` returns the radii. A radius is in pixel units
        of [0, 1]. The radius is NaN if the smoothed classifier abstains or its class is not the label. The
        images with `radii >= eps` are therefore the images that `rb-certify smooth` counts. Random numbers
        depend on (seed, example), as in `rb-certify`. With `adaptive`, the radius is the largest certified
        distance in `eps`, or 0. By default, `eps` is 0, .25, .5, .75 and 1, as in `rb-certify`.

        Shape: images are floating-point (N, C, H, W) in [0, 1], and labels are int64 (N,) on the device of
        the images. `model` maps images to logits (N, K) in eval mode, and its noisy images are not clipped to
        [0, 1]. `examples`, int64 (N,), are the positions of the images in their data set; by default, image i
        is example i. `batch` is the largest number of copies that go through the model at once (64 by default
        on a CPU).

        Raises RbError for invalid images, labels, distances, examples, seed or batch, for distances without
        `adaptive`, for a model in train mode, and for logits that are not finite.
        """
        check_input.check_model(model)
        if not len(images):
            raise RbError("No images were given. Expected at least one.")
        if batch is not None and batch < 1:
            raise RbError(f"batch is {batch}. Expected 1 or more.")
        model, images, labels = check_input.checked(model, images, labels)
        questions = self.questions(self._distances(eps))
        size = batch or (512 if images.is_cuda else 64)
        classes = finite_logits(model, images[:1], size).shape[1]
        draws = [of_images(stream, images, seed, examples) for stream in (self.SELECT, self.ESTIMATE)]

        def logits(noisy: Tensor, rows: Tensor) -> Tensor:
            return finite_logits(model, noisy, smoothed_counts.part_size(len(noisy), size))

        radii = []
        # At any time, one block of copies of each image is in memory.
        for part in torch.arange(len(images)).split(max(2 * size // smoothing.BLOCK, 1)):
            select, estimate = (stream.take(part) for stream in draws)
            some = smoothed_counts.SmoothedExamples(
                images[part], labels[part], select, estimate, logits, classes
            )
            rows = smoothed_counts.count(self, questions, some).cpu().numpy()
            radii.append(np.where(rows[:, 1] == 1, self.certified(rows, questions), np.nan))
        return torch.from_numpy(np.concatenate(radii)).to(images.device)

    def _distances(self, eps: Sequence[float] | None) -> list[float]:
        if eps is None:
            return [float(text) for text in self.default_eps.split(",")]
        if not self.adaptive:
            raise RbError(
                "Only adaptive sampling takes eps. Leave it out, and compare the radii with your distances."
            )
        distances = [float(distance) for distance in eps]
        if not distances or not all(0 <= distance < float("inf") for distance in distances):
            raise RbError(f"eps is {distances}. Expected distances of 0 or more.")
        return distances

    def questions(self, radii: Sequence[float]) -> tuple[float, ...]:
        """The radii to decide: 0 (whether the class has a probability above 1/2), then those above 0."""
        return (0.0, *sorted(radius for radius in set(radii) if radius > 0))

    def certified(self, counts: np.ndarray, questions: tuple[float, ...]) -> np.ndarray:
        """The certified radius (n,) of each image's selected class, or NaN if the classifier abstains.
        `counts` (n, 5) are the rows of `smoothed_counts.count`. With `adaptive`, the result is the largest
        certified radius in `questions`."""
        if not self.adaptive:
            return smoothing.certified_radii(counts[:, 3], counts[:, 2], self.sigma, self.alpha)
        radii: np.ndarray = np.array([np.nan, *questions])[counts[:, 4].astype(int)]
        return radii


def finite_logits(model: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> Tensor:
    """Logits (N, K) in float32, from passes of at most `batch` images. Raises RbError for invalid logits."""
    with torch.no_grad():
        logits = torch.cat([model(part).float() for part in images.split(batch)])
    if logits.dim() != 2 or len(logits) != len(images):
        raise RbError(
            f"The output for {len(images)} images has the shape {tuple(logits.shape)}. Expected (N, classes)."
        )
    if not torch.isfinite(logits).all():
        raise RbError(
            "The model's output is not finite (NaN or infinity). Check its weights and its normalisation."
        )
    return logits

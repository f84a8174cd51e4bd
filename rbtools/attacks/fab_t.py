"""FAB-T: FAB towards each of several wrong classes in turn."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rbtools.attacks.fab import FAB
from rbtools.registry import param

if TYPE_CHECKING:
    from rbtools.attacks.active_batch import Stage


@dataclass(frozen=True, kw_only=True)
class FABT(FAB):
    """Targeted fast adaptive boundary attack (Croce and Hein 2020, arXiv:1907.02044 and 2003.01690).

    One run per target: steps onto the linearised boundary between the true class and the target. Targets are
    the wrong classes in the order of the clean logits, the most likely first. An example is broken, and
    dropped, once any wrong class is found within eps. Unbroken examples are returned unchanged.

    Shape: images float32 (N, C, H, W) in [0, 1], labels int64 (N,); the result is as images.
    """

    name: ClassVar[str] = "fab-t"
    version: ClassVar[int] = 1
    targeted: ClassVar[bool] = True

    targets: int = param(9, "Number of wrong classes to try, if there are as many.", check="positive")

    def stages(self, classes: int) -> list[Stage]:
        return [
            functools.partial(self._walk, restart, rank)
            for rank in range(min(self.targets, classes - 1))
            for restart in range(self.restarts)
        ]

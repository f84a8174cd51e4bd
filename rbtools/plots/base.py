"""What figures share: their size, the canvas they are painted on, and the file they become."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rbtools.errors import RbError
from rbtools.plots import style
from rbtools.registry import param

Record = dict[str, Any]
ENDINGS = ("png", "svg", "pdf")
# No dates and no versions: the same records make the same bytes.
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The options of every figure; a kind adds its own and says in `paint` what is drawn."""

    endings: ClassVar[tuple[str, ...]] = ENDINGS

    width: float = param(
        6.5, "Width of the figure in inches; the column of a paper has some 3.3.", check="positive"
    )
    title: str | None = param(None, "What stands above the figure.  [default: what it shows]")

    def draw(self, records: Iterable[Record], scoring: Any) -> Any:
        """A matplotlib Figure of these records, on the Agg canvas.

        Raises RbError where there are no records, or they lack what is to be drawn.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        held = list(records)
        if not held:
            raise RbError("There are no records to draw.")
        with style.applied():
            figure = Figure()
            FigureCanvasAgg(figure)
            title = self.paint(figure, held, scoring)
            self._entitle(figure, title if self.title is None else self.title)
        return figure

    def paint(self, figure: Any, records: Sequence[Record], scoring: Any) -> str:
        """Paint the records and set the height; return what is shown, as a title."""
        raise NotImplementedError

    def _entitle(self, figure: Any, title: str) -> None:
        if title:
            figure.suptitle(title)


def encode(drawn: Any, ending: str) -> bytes:
    """The bytes of a file: of a Figure as "png", "svg" or "pdf", of a text in UTF-8."""
    if isinstance(drawn, str):
        return drawn.encode()
    stream = io.BytesIO()
    with style.applied():
        drawn.savefig(stream, format=ending, metadata=_METADATA[ending])
    return stream.getvalue()

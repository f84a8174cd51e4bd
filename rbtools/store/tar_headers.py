"""Headers of tar archives from elsewhere, for Python's reader."""

from __future__ import annotations

import tarfile
from typing import IO, Any, cast

# Of a header that only extends the next one, by a long name for example. The reader takes memory for as many
# bytes as it claims, and in Python before 3.11.10 and 3.12.6 time that grows with the square of their number.
MOST_BYTES = 8192
_PAX = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_EXTENDS = (*_PAX, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_MOST_ENDS = 1000


class TarHeader(tarfile.TarInfo):
    """A header; one of more than `MOST_BYTES` that extends the next raises tarfile.ReadError."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: Any, errors: str) -> TarHeader:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _EXTENDS and header.size > MOST_BYTES:
            raise tarfile.ReadError(f"a header claims {header.size} bytes of names")
        return header


def ending(stream: IO[bytes]) -> IO[bytes]:
    """The stream for tarfile's mode `r|`, which reads on at the end for as long as a header claims."""
    return cast("IO[bytes]", _Ending(stream))


class _Ending:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._ends = stream, 0

    def read(self, size: int = -1) -> bytes:
        """Some bytes. Raises EOFError where the end was met again and again."""
        data = self._stream.read(size)
        self._ends += not data
        if self._ends > _MOST_ENDS:
            raise EOFError("a file in it is cut off")
        return data

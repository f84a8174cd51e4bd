"""Requests to a server, with a time limit, repetitions, a maximum rate, and headers that are never shown."""

from __future__ import annotations

import os
import re
import ssl
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader, LocationValueError, ProtocolError, TimeoutError

from rbtools.errors import RbError, shown
from rbtools.plain_files import read_settings
from rbtools.queries.base import ModelFailure

if TYPE_CHECKING:
    from rbtools.execution.run import Access

_AGAIN = {408, 425, 429}  # statuses of requests that are repeated, in addition to 500 and above
_FIRST, _LONGEST = 0.1, 10.0  # seconds of the back-off
_NAME = re.compile(r"[!#$%&'*+.^`|~\w-]+", re.ASCII)


class HttpClient:
    """Requests to one address. A request and its repetitions take at most `timeout` seconds."""

    def __init__(self, address: str, access: Access) -> None:
        self.address, self.timeout, self.rate = address, access.timeout, access.rate
        self._headers, self._next = _headers(access), 0.0
        words = {
            word for value in self._headers.values() for word in (value, *value.split()) if len(word) > 3
        }
        self._secrets = sorted(words, key=len, reverse=True)
        self._pool = urllib3.PoolManager()

    def close(self) -> None:
        self._pool.clear()

    def hidden(self, text: str) -> str:
        """A string from the server, shortened for a message and without the values of headers."""
        return shown(" ".join(self.without_headers(text).split()), 200)

    def without_headers(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def post(self, body: bytes, kind: str, image: int = 0, address: str | None = None) -> bytes:
        return self.request("POST", address or self.address, body, {"Content-Type": kind}, image)

    def request(
        self,
        method: str,
        address: str,
        body: bytes | None = None,
        more: dict[str, str] | None = None,
        image: int = 0,
    ) -> bytes:
        """The server's answer. Raises ModelFailure if the server refuses or cannot be reached in time."""
        retry = urllib3.Retry(None, allowed_methods=None, backoff_factor=_FIRST, backoff_max=_LONGEST)
        self._wait_for_turn()
        end = monotonic() + self.timeout
        while True:
            response = error = None
            try:
                response = self._pool.request(
                    method,
                    address,
                    body=body,
                    headers={**(more or {}), **self._headers},
                    timeout=max(end - monotonic(), 0.001),
                    retries=False,
                    redirect=False,
                )
                if 200 <= response.status < 300:
                    return bytes(response.data)
                problem, again = self._refusal(response), response.status in _AGAIN or response.status >= 500
            except HTTPError as wrong:
                error = wrong
                problem, again = _in_words(wrong), not _is_final(wrong)
            retry = retry.increment(method, address, response, error)
            pause = max(_retry_after(retry, response), retry.get_backoff_time())
            if not again or monotonic() + pause >= end:
                tries = (
                    f" {len(retry.history)} requests within {self.timeout:g} seconds failed." if again else ""
                )
                advice = "Check that the server runs, or raise --timeout." if again else "Check the request."
                raise ModelFailure(f"{shown(address)} {problem}.{tries} {advice}", image) from None
            sleep(pause)
            self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if self.rate is not None:
            if (pause := self._next - monotonic()) > 0:
                sleep(pause)
            self._next = max(self._next, monotonic()) + 1 / self.rate

    def _refusal(self, response: urllib3.BaseHTTPResponse) -> str:
        """Describes an unsuccessful response. Redirects are not followed: they would pass on the headers."""
        if target := response.headers.get("Location"):
            return f"redirects to {self.hidden(target)}. If you trust that address, use it instead"
        text = self.hidden(response.data.decode("utf-8", "replace"))
        return f"answered with status {response.status}" + (f": {text.rstrip('.')}" if text else "")


def _headers(access: Access) -> dict[str, str]:
    """The headers in the file, or in the variable RB_HEADERS. Error messages never contain them."""
    text, place = os.environ.get("RB_HEADERS", ""), "RB_HEADERS"
    if access.headers is not None:
        place = f"--headers {shown(access.headers)}"
        try:
            text = read_settings(access.headers)
        except (OSError, ValueError) as wrong:
            reason = getattr(wrong, "strerror", None) or "it is not UTF-8 text"
            raise RbError(f"Cannot read {place}: {reason}.") from None
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (colon and _NAME.fullmatch(name) and value.isprintable() and value.isascii()):
            raise RbError(f"Line {number} of {place} is not a header. Expected NAME: VALUE.")
        found[name] = value
    return found


def _retry_after(retry: urllib3.Retry, response: urllib3.BaseHTTPResponse | None) -> float:
    """The number of seconds that the server asks the client to wait."""
    with suppress(InvalidHeader):
        return (response is not None and retry.get_retry_after(response)) or 0.0
    return 0.0


def _is_final(wrong: HTTPError) -> bool:
    """True if a repetition cannot help because the address or the server's certificate is not valid."""
    return isinstance(wrong, LocationValueError) or isinstance(
        (*wrong.args, None)[0], ssl.SSLCertVerificationError
    )


def _in_words(wrong: HTTPError) -> str:
    if isinstance(wrong, ProtocolError):
        return "dropped the connection"
    if isinstance(wrong, urllib3.exceptions.NewConnectionError):
        return "cannot be reached"
    if isinstance(wrong, TimeoutError):
        return "did not answer in time"
    return f"failed: {shown(str(wrong), 200).rstrip('.')}"

"""Models behind an address: a server that receives batches of images over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from rbtools.errors import RbError, shown
from rbtools.plain_files import read_settings
from rbtools.queries.base import KindOfModel, Service
from rbtools.registry import rare_param

if TYPE_CHECKING:
    from typing_extensions import Self

    from rbtools.execution.run import Access

_option = partial(rare_param, group="Model")


@dataclass(frozen=True, kw_only=True)
class AddressModel(KindOfModel):
    """A model on a server. `request` is the template itself, which the command line reads from a file."""

    name = "url"
    flag = "--model-url"
    metavar = "URL"
    help = "Evaluate a server that receives batches of images by POST at this address (see --protocol)."

    protocol: str = _option(
        "npy",
        "Format of the requests to --model-url: a .npy array, the JSON of --request, or KServe's open"
        " inference protocol (v2), for which the address ends in v2/models/NAME.",
        choices=("npy", "json", "kserve"),
    )
    request: str | None = _option(
        None,
        'Template of the JSON for --model-url. "{images}" is replaced by a list of PNG images in base64, or'
        " {image} by a single one, in which case each image is a request.",
        metavar="FILE",
    )
    answer: str | None = _option(
        None,
        "JMESPath expression that selects the answers in the JSON that --model-url returns, such as"
        " predictions or [*].scores.",
        metavar="EXPRESSION",
    )

    @classmethod
    def typed(cls, text: str, **options: Any) -> Self:
        """The model that the user specifies, with `request` as the name of a file. Raises RbError."""
        if path := options.get("request"):
            try:
                options = {"protocol": "json", **options, "request": read_settings(path)}
            except (OSError, ValueError) as wrong:
                reason = getattr(wrong, "strerror", None) or "it is not UTF-8 text"
                raise RbError(f"Cannot read --request {shown(path)}: {reason}.") from None
        return cls(text=text, **options)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.text)
            user = parts.username or parts.password
            known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            known = known and self.text.isprintable() and " " not in self.text
        except ValueError:
            user, known = None, False
        if user is not None:  # not shown, because it may be a password
            raise RbError(
                "The address contains a user name or a password, which records would then contain. Put a"
                " header such as Authorization: Basic ... into a file and pass it with --headers."
            )
        if not known:
            raise RbError(
                f"{shown(self.text)} is not a valid address. Expected http://HOST... or https://HOST..."
            )
        if (self.protocol == "json") != (self.request is not None):
            raise RbError(
                "--request FILE is required for the protocol json and not allowed for the other protocols."
                " Add it or leave it out."
            )
        if self.request is not None and ('"{images}"' in self.request) == ("{image}" in self.request):
            raise RbError('Expected either "{images}" or {image} in the JSON of --request.')
        if self.request is not None and self.model_pixels != "uint8":
            raise RbError(
                "PNG images have 8-bit pixels. Leave out --model-pixels float, or use --protocol npy."
            )

    def open(self, access: Access) -> Service:
        try:
            from rbtools.queries.http_service import HttpService
        except ImportError as missing:
            raise RbError(
                f"--model-url needs the package {missing.name}. Run pip install 'rbtools[url]'."
            ) from None
        return HttpService(self, access)

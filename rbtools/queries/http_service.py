"""Queries a server: requests and answers in the protocols npy, json and kserve."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jmespath
import numpy as np
import orjson
from jmespath.exceptions import JMESPathError
from PIL import Image

from rbtools.errors import RbError, shown
from rbtools.queries.base import BatchAnswers, ModelFailure, answers_of
from rbtools.queries.http_client import HttpClient
from rbtools.queries.wire import as_npy, parsed

if TYPE_CHECKING:
    from rbtools.execution.run import Access
    from rbtools.queries.address import AddressModel

_JSON = "application/json"


class HttpService:
    def __init__(self, model: AddressModel, access: Access) -> None:
        self.model, self.client = model, HttpClient(model.text, access)
        try:
            self.expression = None if model.answer is None else jmespath.compile(model.answer)
            self.template = None if model.request is None else orjson.loads(model.request)
        except JMESPathError as wrong:
            raise RbError(f"--answer is not a JMESPath expression: {shown(str(wrong), 200)}") from None
        except ValueError as wrong:
            raise RbError(f"The template of --request is not JSON: {wrong}.") from None
        self.kserve = KServe(self.client, model.text) if model.protocol == "kserve" else None

    def ask(self, images: np.ndarray) -> BatchAnswers:
        try:
            return answers_of(_named([*self._answers(images)]), len(images))
        except ModelFailure as wrong:
            said = self.client.without_headers(str(wrong))
            raise ModelFailure(
                f"{shown(self.model.text)} did not answer for image {wrong.image + 1} of the {len(images)}"
                f" that were sent to it. {said}",
                wrong.image,
            ) from None

    def close(self) -> None:
        self.client.close()

    def _answers(self, images: np.ndarray) -> Iterator[Any]:
        """Yields an answer for each image, which may be a plain number or a list."""
        if self.kserve is not None:
            for start, body in self.kserve.bodies(images):
                reply = self._selected(self.client.post(body, _JSON, start, self.kserve.address), start)
                yield from self.kserve.rows(reply, start)
        elif self.template is None:
            data = self.client.post(as_npy(images), "application/octet-stream")
            lines = data.splitlines() if data.lstrip()[:1] == b"{" and self.expression is None else [data]
            found = [self._selected(line, number) for number, line in enumerate(lines) if line.strip()]
            yield from found[0] if len(found) == 1 and isinstance(found[0], list) else found
        elif "{image}" in self.model.request:  # type: ignore[operator]
            for number, png in enumerate(map(_png, images)):
                yield self._selected(self.client.post(_filled(self.template, png), _JSON, number), number)
        else:
            body = _filled(self.template, [*map(_png, images)])
            found = self._selected(self.client.post(body, _JSON))
            yield from found if isinstance(found, list) else [found]

    def _selected(self, data: bytes, number: int = 0) -> Any:
        """The part of the server's JSON that --answer selects."""
        try:
            value = parsed(data, number)
        except ModelFailure:
            text = self.client.hidden(data.decode("utf-8", "replace"))
            raise ModelFailure(f"The server answered with {text}, which is not JSON.", number) from None
        try:
            found = value if self.expression is None else self.expression.search(value)
        except JMESPathError as wrong:
            found, reason = None, str(wrong)
        else:
            reason = "it selects nothing"
        if found is None:
            raise ModelFailure(
                f"--answer {shown(self.model.answer or '')} cannot be applied to the server's answer"
                f" {self.client.hidden(data.decode('utf-8', 'replace'))}: {shown(reason)}",
                number,
            )
        return found


class KServe:
    """A model whose only input is images, on a server that uses the open inference protocol (v2).

    The server's metadata determine how images are sent: 8-bit pixels for UINT8, and numbers in [0, 1] for
    FP16, FP32 and FP64; channels are last if this shape fits, and otherwise first.
    """

    def __init__(self, client: HttpClient, address: str) -> None:
        base = address.rstrip("/").removesuffix("/infer")
        self.address = f"{base}/infer"
        about = parsed(client.request("GET", base))
        try:
            (given,) = about["inputs"]
            self.name, self.type, self.shape = given["name"], given["datatype"], [*map(int, given["shape"])]
        except (LookupError, TypeError, ValueError):
            quoted = client.hidden(str(about))
            raise RbError(
                f"{shown(base)} returned the metadata {quoted}. Expected metadata with one input that has a"
                " name, a datatype and a shape. Check the address."
            ) from None
        if self.type not in ("UINT8", "FP16", "FP32", "FP64"):
            raise RbError(f"{shown(base)} takes {shown(str(self.type))}. Expected UINT8, FP16, FP32 or FP64.")

    def bodies(self, images: np.ndarray) -> Iterator[tuple[int, bytes]]:
        """Yields requests, with the index of their first image. Each has one image if the input has one."""
        step = 1 if self.shape[:1] == [1] else len(images)
        for start in range(0, len(images), step):
            tensor = self._tensor(images[start : start + step])
            data = np.ascontiguousarray(tensor).reshape(-1)
            given = {"name": self.name, "shape": tensor.shape, "datatype": self.type, "data": data}
            yield start, orjson.dumps({"inputs": [given]}, option=orjson.OPT_SERIALIZE_NUMPY)

    def _tensor(self, images: np.ndarray) -> np.ndarray:
        if (self.type == "UINT8") != (images.dtype == np.uint8):
            if self.type == "UINT8":
                raise ModelFailure("The server takes 8-bit pixels. Leave out --model-pixels float.")
            images = np.float32(images) / np.float32(255)
        for tensor in (images, images.transpose(0, 3, 1, 2)):
            sizes = zip(self.shape, tensor.shape, strict=False)
            if len(self.shape) == 4 and all(size in (-1, given) for size, given in sizes):
                return tensor
        raise ModelFailure(
            f"The server expects the shape {self.shape}, but the images have the shape {[*images.shape]} or,"
            f" with channels first, {[*images.transpose(0, 3, 1, 2).shape]}. Change --dataset."
        )

    def rows(self, reply: Any, start: int) -> list[Any]:
        """The answers in a reply, or in the part of a reply that --answer selected."""
        try:
            (output,) = reply.get("outputs", [reply])
            values = np.asarray(output["data"]).reshape(output["shape"][0], -1)
            if not np.issubdtype(values.dtype, np.number):
                raise ValueError
        except (LookupError, TypeError, ValueError, AttributeError):
            raise ModelFailure(
                f"The server's reply is {shown(str(reply), 200)}. Expected one output of numbers. If there"
                " are several, select one with --answer \"outputs[?name=='NAME'] | [0]\".",
                start,
            ) from None
        labels = values.shape[1:] == (1,) and np.issubdtype(values.dtype, np.integer)
        found: list[Any] = (values[:, 0] if labels else values.astype(np.float64)).tolist()
        return found


def _named(answers: list[Any]) -> list[Any]:
    """The answers as objects: numbers are labels; lists are probabilities if all sum to 1, else logits."""
    lists = [one for one in answers if isinstance(one, list) and one]
    numbers = all(type(value) in (int, float) for row in lists for value in row)
    probs = numbers and all(min(row) >= 0 and abs(sum(row) - 1) < 1e-3 for row in lists)
    form = "probs" if probs else "logits"
    return [
        {form: one} if isinstance(one, list) else {"label": one} if type(one) is int else one
        for one in answers
    ]


def _png(image: np.ndarray) -> str:
    """An 8-bit image (H, W, C), encoded as PNG in base64."""
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _filled(template: Any, images: str | list[str]) -> bytes:
    """The JSON of a request with the images in it."""

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(value) for key, value in node.items()}
        if isinstance(node, list):
            return [filled(value) for value in node]
        if isinstance(node, str) and isinstance(images, str):
            return node.replace("{image}", images)
        return images if node == "{images}" else node

    return orjson.dumps(filled(template))

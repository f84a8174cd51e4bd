"""rbtools/queries: an address as a model. The server is one of this process."""

from __future__ import annotations

import base64
import http.server
import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rbtools.errors import RbError
from rbtools.execution.run import Access
from rbtools.queries import http_client
from rbtools.queries.address import AddressModel
from rbtools.queries.base import BatchAnswers, ModelFailure

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), dtype=np.uint8)
LABELS = (IMAGES[:, 0, 0, 0] % 10).tolist()
ROWS = np.eye(10, dtype=np.float32)[LABELS]
SECRET = "s3cret-token-of-mine"


class Server:
    """BatchAnswers by `reply(path, body)`. `faults` maps numbers of requests to statuses, or "drop"."""

    def __init__(self) -> None:
        self.reply: Callable[[str, bytes], Any] = npy_labels
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.faults: dict[int, Any] = {}
        self.port = 0
        self.start()

    def start(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append((self.path, dict(self.headers), body))
                fault = outer.faults.get(len(outer.asked) - 1)
                if fault == "drop":
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                if fault == "late":
                    time.sleep(0.01)
                    fault = None
                status, headers, data = fault or (200, {}, None)
                if data is None:
                    value = outer.reply(self.path, body)
                    data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                for name, text in {"Content-Length": str(len(data)), **headers}.items():
                    self.send_header(name, text)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None: ...

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def ask(
        self, images: np.ndarray = IMAGES, path: str = "/x", access: Access | None = None, **options: Any
    ) -> BatchAnswers:
        model = AddressModel(text=f"http://127.0.0.1:{self.port}{path}", **options)
        service = model.open(access or Access())
        try:
            return service.ask(images)
        finally:
            service.close()


def npy_labels(path: str, body: bytes) -> bytes:
    images = np.load(io.BytesIO(body))
    return b"".join(b'{"label": %d}\n' % (image.flat[0] % 10) for image in images)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between requests, which no test waits for."""
    found: list[float] = []
    monkeypatch.setattr(http_client, "sleep", found.append)
    return found


def test_the_three_forms_as_lines_and_as_a_list(server: Server) -> None:
    assert server.ask().values.tolist() == LABELS
    assert server.asked[0][1]["Content-Type"] == "application/octet-stream"
    server.reply = lambda *_: [{"logits": row} for row in (2 * ROWS).tolist()]
    assert np.array_equal(server.ask().values, 2 * ROWS)
    server.reply = lambda *_: {"of": [{"probs": row} for row in ROWS.tolist()]}
    found = server.ask(answer="of")
    assert found.form == "probs" and np.array_equal(found.values, ROWS)


@pytest.mark.parametrize(
    ("given", "form"), [(LABELS, "label"), (ROWS.tolist(), "probs"), ((2 * ROWS).tolist(), "logits")]
)
def test_bare_answers_are_named_by_their_kind(server: Server, given: list[Any], form: str) -> None:
    server.reply = lambda *_: {"p": given}
    found = server.ask(answer="p")
    assert found.form == form and found.values.ravel().tolist() == np.ravel(given).tolist()


def label_of(png: str) -> int:
    return int(np.asarray(Image.open(io.BytesIO(base64.b64decode(png)))).flat[0] % 10)


def test_a_template_has_all_images_or_one(server: Server) -> None:
    Path("all.json").write_text('{"a": {"list": "{images}"}, "n": 1}')
    server.reply = lambda path, body: {"p": [label_of(one) for one in json.loads(body)["a"]["list"]]}
    text = f"http://127.0.0.1:{server.port}/"
    model = AddressModel.typed(text, request="all.json", answer="p")
    assert model.protocol == "json" and model.request == Path("all.json").read_text()
    assert model.open(Access()).ask(IMAGES).values.tolist() == LABELS and len(server.asked) == 1

    server.reply = lambda path, body: {"c": label_of(json.loads(body)["u"].partition(",")[2])}
    options = {"protocol": "json", "request": '{"u": "data:image/png;base64,{image}"}', "answer": "c"}
    assert server.ask(**options).values.tolist() == LABELS and len(server.asked) == 13
    grey = IMAGES[..., :1]
    assert server.ask(grey, **options).values.tolist() == (grey[:, 0, 0, 0] % 10).tolist()


@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.parametrize("type", ["UINT8", "FP32"])
@pytest.mark.parametrize("batch", [-1, 1])
def test_kserve(server: Server, type: str, channels_first: bool, batch: int) -> None:
    shape = [batch, 3, 8, 8] if channels_first else [batch, -1, -1, 3]

    def reply(path: str, body: bytes) -> Any:
        if path == "/v2/models/m":
            return {"name": "m", "inputs": [{"name": "in", "datatype": type, "shape": shape}]}
        assert path == "/v2/models/m/infer"
        (given,) = json.loads(body)["inputs"]
        assert given["name"] == "in" and given["datatype"] == type
        values = np.array(given["data"]).reshape(given["shape"]) * (1 if type == "UINT8" else 255)
        labels = values.round().astype(int)[:, 0, 0, 0] % 10
        data = np.eye(10)[labels].ravel().tolist()
        return {"outputs": [{"name": "p", "datatype": "FP32", "shape": [len(labels), 10], "data": data}]}

    server.reply = reply
    assert np.array_equal(server.ask(path="/v2/models/m", protocol="kserve").values, ROWS)
    assert len(server.asked) == (2 if batch < 0 else 13)


def test_over_50_faults_change_no_answer(server: Server, pauses: list[float]) -> None:
    kinds = [
        (500, {}, b"no"),
        "drop",
        (429, {"Retry-After": "7"}, b""),
        (503, {}, b""),
        "late",
    ]
    chosen = np.random.default_rng(1).permutation(380)[:80]
    server.faults = {int(number): kinds[place % 5] for place, number in enumerate(chosen)}
    service = AddressModel(text=f"http://127.0.0.1:{server.port}/x").open(Access())
    for number in range(320):
        start = number % 12
        assert service.ask(IMAGES[start : start + 1]).values.tolist() == LABELS[start : start + 1]
    met = sum(fault != "late" for number, fault in server.faults.items() if number < len(server.asked))
    assert met > 50 and len(server.asked) == 320 + met and 7.0 in pauses
    service.close()


def test_a_server_that_was_killed_and_comes_back_is_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = AddressModel(text=f"http://127.0.0.1:{server.port}/x").open(Access())
    assert service.ask(IMAGES).values.tolist() == LABELS
    server.faults = {1: "drop"}
    tries: list[float] = []

    def sleep(seconds: float) -> None:
        tries.append(seconds)
        if len(tries) == 1:
            server.stop()
        if len(tries) == 4:
            server.start()

    monkeypatch.setattr(http_client, "sleep", sleep)
    assert service.ask(IMAGES).values.tolist() == LABELS and len(tries) >= 4
    service.close()


def test_the_rate_is_kept(server: Server, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "monotonic", lambda: 100 + sum(pauses))
    server.faults = {1: (500, {}, b"")}
    service = AddressModel(text=f"http://127.0.0.1:{server.port}/x").open(Access(rate=2.0))
    for _ in range(4):
        service.ask(IMAGES)
    assert len(server.asked) == 5 and sum(pauses) == pytest.approx(2.0)
    service.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ((403, {}, f"bad token {SECRET}".encode()), r"status 403: bad token \*\*\*"),
        (
            (302, {"Location": f"http://127.0.0.1:1/{SECRET}"}, b""),
            r"redirects to http://127\.0\.0\.1:1/\*\*\*",
        ),
        ((429, {"Retry-After": "4000"}, SECRET.encode()), "1 requests within 60 seconds failed"),
        ((200, {}, f"<html>{SECRET}".encode()), "which is not JSON"),
        ((200, {}, json.dumps([{"label": SECRET}] * 12).encode()), "Expected a class number"),
        ((200, {}, b'[{"label": 1}]'), "1 answers for 12 images"),
    ],
)
@pytest.mark.parametrize("place", ["file", "variable"])
def test_headers_are_sent_and_nothing_shows_them(
    server: Server,
    fault: Any,
    message: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    lines, access = f"Authorization: Bearer {SECRET}\n\nX-Other: 1\n", Access()
    if place == "file":
        Path("headers").write_text(lines)
        access = Access(headers="headers")
    else:
        monkeypatch.setenv("RB_HEADERS", lines)
    model = AddressModel(text=f"http://127.0.0.1:{server.port}/x")
    service = model.open(access)
    assert service.ask(IMAGES).values.tolist() == LABELS
    assert server.asked[0][1]["Authorization"] == f"Bearer {SECRET}" and server.asked[0][1]["X-Other"] == "1"
    server.faults = {1: fault}
    with pytest.raises(ModelFailure, match=message) as wrong:
        service.ask(IMAGES)
    texts = [str(wrong.value), repr(wrong.value), repr(model), repr(service), repr(access), caplog.text]
    assert not any(SECRET in text for text in texts) and len(server.asked) == 2
    service.close()


@pytest.mark.parametrize("lines", [f"{SECRET}", f"X: {SECRET}é", f"a b: {SECRET}", f"ok: 1\n{SECRET}:\x07"])
def test_a_line_that_is_no_header_is_refused_without_showing_it(lines: str) -> None:
    Path("headers").write_text(lines)
    with pytest.raises(RbError, match="is not a header") as wrong:
        AddressModel(text="http://127.0.0.1:1").open(Access(headers="headers"))
    assert SECRET not in str(wrong.value)
    with pytest.raises(RbError, match="Cannot read --headers missing: No such file"):
        AddressModel(text="http://127.0.0.1:1").open(Access(headers="missing"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": f"http://me:{SECRET}@host/x"}, "--headers"),
        ({"text": "ftp://host"}, "is not a valid address"),
        ({"text": "http://"}, "is not a valid address"),
        ({"text": "http://host:port"}, "is not a valid address"),
        ({"text": "http://host", "protocol": "json"}, "--request FILE is required"),
        ({"text": "http://host", "request": '"{images}"'}, "--request FILE is required"),
        ({"text": "http://host", "protocol": "json", "request": "{}"}, "Expected either"),
        (
            {"text": "http://host", "protocol": "json", "request": '"{image}"', "model_pixels": "float"},
            "8-bit",
        ),
    ],
)
def test_models_that_cannot_be_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(RbError, match=message) as wrong:
        AddressModel(**options)
    assert SECRET not in str(wrong.value)


def test_a_server_that_is_not_there_is_an_error(server: Server) -> None:
    server.stop()
    with pytest.raises(ModelFailure, match="cannot be reached"):
        server.ask(access=Access(timeout=0.05))
    server.start()


def test_expressions_and_templates_that_are_none_are_errors(server: Server) -> None:
    with pytest.raises(RbError, match="not a JMESPath"):
        server.ask(answer="[[")
    with pytest.raises(RbError, match="is not JSON"):
        server.ask(protocol="json", request='{"{images}"')
    with pytest.raises(ModelFailure, match="cannot be applied"):
        server.reply = lambda *_: {"a": 1}
        server.ask(answer="b")


def test_the_extra_is_named_if_its_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jmespath", None)
    monkeypatch.delitem(sys.modules, "rbtools.queries.http_service", raising=False)
    with pytest.raises(RbError, match=r"pip install 'rbtools\[url\]'"):
        AddressModel(text="http://127.0.0.1:1").open(Access())

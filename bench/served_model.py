"""Attacks on labels over a server that takes time for a request, beside ART.

    python bench/served_model.py [--delay 0.02] [--n 50] [--theirs 2] [--queries 300]
    python bench/served_model.py --faults 0.1 --kills 20 [--n 300] [--queries 400]

The server answers by the distance to the mean digit of each class. One JSON line a figure: seconds on the
clock for a query of an image, and the ratio to ours. ART sends the images of one image at a time.

With --faults, a share of the requests fails (status 500 or 429, a dropped connection, a late answer), and the
tool is killed --kills times: numbers and answered images beside those of a run without.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import numpy as np
from common import show
from sklearn.datasets import load_digits

from rbtools.api import curve
from rbtools.execution.run import Run
from rbtools.inputs.queried import record_of
from rbtools.queries.address import AddressModel


class Counted(ThreadingHTTPServer):
    """A server on the loopback address that counts requests and images."""

    daemon_threads = True

    def __init__(self, delay: float, faults: float = 0) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        digits = load_digits()
        means = [digits.data[digits.target == label].mean(0) / 16 for label in range(10)]
        self.delay, self.means, self.requests, self.images = delay, np.stack(means), 0, 0
        self.faults, self.failed, self.chance = faults, 0, random.Random(0)

    def handle_error(self, *_: object) -> None:
        """A client that was killed is no error."""


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: object) -> None: ...

    def do_POST(self) -> None:
        images = np.load(io.BytesIO(self.rfile.read(int(self.headers["Content-Length"]))))
        time.sleep(self.server.delay)
        self.server.requests += 1
        if self.server.chance.random() < self.server.faults and self.failed():
            return
        self.server.images += len(images)
        pixels = images.reshape(len(images), 1, -1) / 255
        labels = ((pixels - self.server.means) ** 2).sum(2).argmin(1)
        data = "\n".join(json.dumps({"label": int(label)}) for label in labels).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def failed(self) -> bool:
        """Fail in one of four ways. False for an answer that is late."""
        self.server.failed += 1
        way = self.server.chance.choice([500, 429, "dropped", "late"])
        if way == "dropped":
            self.connection.close()
        elif way == "late":
            time.sleep(0.5)
        else:
            self.send_response(int(way))
            self.send_header("Content-Length", "0")
            self.end_headers()
        return way != "late"


def attacked(server: Counted, given: argparse.Namespace, kills: int = 0) -> dict[str, float]:
    """The metrics of `rb-attack rays` on the server, after it was killed `kills` times."""
    threading.Thread(target=server.serve_forever, daemon=True).start()
    words = f"rays --eps 32 --queries {given.queries} --n {given.n} --model-version 1"
    with tempfile.TemporaryDirectory() as folder:
        place = ["--store", folder, "--model-url", f"http://127.0.0.1:{server.server_address[1]}/"]
        command = [sys.executable, "-m", "rbtools.commands.attack", *words.split(), *place]
        for _ in range(kills):
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(random.uniform(2.5, 5.5))
            process.kill()
            process.wait()
        done = subprocess.run(command, capture_output=True, check=True)
    server.shutdown()
    metrics: dict[str, float] = json.loads(done.stdout)["metrics"]
    return metrics


def ours(url: str, n: int, queries: int) -> None:
    record = record_of(AddressModel(text=url), Run.of(dataset="digits"))
    options: Any = {"attacks": "hopskipjump", "norm": "l2", "queries": str(queries), "n": n}
    curve(record, allow_code=True, store=None, **options)


def of_art(url: str, n: int, queries: int) -> None:
    from art.attacks.evasion import HopSkipJump
    from art.estimators.classification import BlackBoxClassifierNeuralNetwork

    digits = load_digits()
    images = (digits.images[:n, None] / 16).astype(np.float32)

    def predict(given: np.ndarray) -> np.ndarray:
        buffer = io.BytesIO()
        np.save(buffer, (given.transpose(0, 2, 3, 1) * 255).round().clip(0, 255).astype(np.uint8))
        with urlopen(url, buffer.getvalue()) as response:
            labels = [json.loads(line)["label"] for line in response.read().splitlines()]
        return np.eye(10, dtype=np.float32)[labels]

    wrapped = BlackBoxClassifierNeuralNetwork(predict, (1, 8, 8), 10, clip_values=(0.0, 1.0))
    steps = max(queries // 100, 1)
    HopSkipJump(wrapped, norm=2, max_iter=steps, max_eval=100, init_eval=50, verbose=False).generate(images)


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("--delay", type=float, default=0.02)
    words.add_argument("--n", type=int, default=50)
    words.add_argument("--theirs", type=int, default=2)
    words.add_argument("--queries", type=int, default=300)
    words.add_argument("--faults", type=float, default=0.0)
    words.add_argument("--kills", type=int, default=0)
    given = words.parse_args()
    if given.faults or given.kills:
        reliable, faulty = Counted(0), Counted(0, given.faults)
        expected, found = attacked(reliable, given), attacked(faulty, given, given.kills)
        about = {"faults": faulty.failed, "kills": given.kills, "equal": found == expected}
        show("faults and kills", **about, images=faulty.images, images_without=reliable.images)
        return
    server = Counted(given.delay)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, first = f"http://127.0.0.1:{server.server_address[1]}/", None
    for name, attack, n in (("rbtools", ours, given.n), ("ART", of_art, given.theirs)):
        server.requests = server.images = 0
        start = time.perf_counter()
        attack(url, n, given.queries)
        each = (time.perf_counter() - start) / server.images
        first = first or each
        about = {"requests": server.requests, "queries": server.images, "seconds_a_query": round(each, 6)}
        show("a query over HTTP", library=name, images=n, **about, ratio=round(each / first, 2))
    server.shutdown()


if __name__ == "__main__":
    main()

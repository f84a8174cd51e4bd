"""Downloads from a server on this machine: only published content is kept."""

from __future__ import annotations

import http.server
import shutil
import tarfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from rbtools import datasets
from rbtools.datasets import digits, photographs, published_files
from rbtools.datasets.published_files import ListedFile
from tests import runner
from tests.datasets import archives
from tests.datasets.archives import error_of
from tests.datasets.test_published import list_sums


class Server:
    """Files by name, and how each is answered; `asked` counts."""

    def __init__(self):
        self.files, self.asked, self.delay = {}, [], 0.0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name = self.path.rpartition("/")[2]
                outer.asked.append(self.path)
                time.sleep(outer.delay)
                status, data, length = outer.files.get(name, (404, b"<html>no</html>", None))
                self.send_response(status)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def offer(self, name, data, status=200, length=-1):
        self.files[name] = status, data, len(data) if length == -1 else length
        return self.remote(name, data, name)

    def remote(self, name, data, path, dataset=""):
        """A row of files.tsv: this file, which becomes `path`."""
        sum = archives.hashlib.md5(data).hexdigest()
        return ListedFile(dataset, "", path, sum, f"{self.address}/path/{name}", "1 MB")


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def quiet(*arguments):
    pass


def bring(remote, home, say=quiet, check_cancelled=quiet):
    published_files.bring(remote, Path(home), say, check_cancelled)


def download(name, split, home):
    datasets.source(name, home).download(split, quiet, quiet)


def offer(monkeypatch, remote):
    """Have a data set's archive be this one."""
    others = [file for file in published_files.published() if file.dataset != remote.dataset or file.split]
    monkeypatch.setattr(published_files, "published", lambda: [remote, *others])


def at_once(count, call, *arguments):
    threads = [threading.Thread(target=call, args=arguments) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def left(home):
    return sorted(path.name for path in Path(home).iterdir())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"something else", -1), "is not the published file: its MD5 is"),
        ((404, b"<html>", -1), "Not Found"),
        ((503, b"", -1), "Service Unavailable"),
        ((200, b"the", 8), "(3 bytes) is not the published file"),  # it breaks off
    ],
)
def test_anything_else_than_the_file_is_not_kept(server, tmp_path, answer, message):
    remote = server.offer("a.bin", b"the file")
    server.offer("a.bin", answer[1], answer[0], answer[2])
    found = error_of(bring, remote, tmp_path)
    assert message in found and remote.url in found and left(tmp_path) == []


def test_a_download_that_is_stopped_leaves_nothing(server, tmp_path):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring(server.offer("a.bin", b"x" * 100), tmp_path, check_cancelled=stop)
    assert left(tmp_path) == []


def test_a_server_that_is_not_there_is_named(tmp_path):
    remote = ListedFile("", "", "a.bin", "0" * 32, "http://127.0.0.1:9/a.bin", "1 MB")
    assert error_of(bring, remote, tmp_path).startswith("Cannot download http://127.0.0.1:9/a.bin: ")


def test_several_who_want_it_download_it_once(server, tmp_path):
    server.delay = 0.3
    at_once(4, bring, server.offer("a.bin", b"the file"), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"the file" and len(server.asked) == 1


def test_cifar_is_downloaded_unpacked_and_read(server, tmp_path, monkeypatch):
    made = archives.cifar10(tmp_path / "made")
    packed = archives.tar(tmp_path / "cifar.tar.gz", tmp_path / "made/cifar-10-batches-py")
    server.offer("cifar-10-python.tar.gz", packed.read_bytes())
    remote = server.remote("cifar-10-python.tar.gz", packed.read_bytes(), "cifar-10-batches-py", "cifar10")
    offer(monkeypatch, remote)
    sizes = {split: len(labels) for split, (_, labels) in made.items()}
    monkeypatch.setattr(datasets.DATASETS.load("cifar10"), "sizes", sizes)
    list_sums(monkeypatch, "cifar10", tmp_path / "made")
    home = tmp_path / "sets"
    message = error_of(datasets.load, "cifar10", "test", home)
    assert f"Add --download to get {remote.url} (1 MB)" in message
    assert server.asked == [] and not home.exists()  # never without being asked
    download("cifar10", "test", home)
    assert left(home) == ["cifar-10-batches-py", "cifar-10-python.tar.gz"]
    for split, (images, labels) in made.items():
        download("cifar10", split, home)
        found = datasets.load("cifar10", split, home)
        assert np.array_equal(found.images.numpy(), images) and found.labels.tolist() == labels
    assert len(server.asked) == 1


def test_an_archive_that_is_there_is_unpacked_without_a_download(server, tmp_path, monkeypatch):
    """Several processes download at once, like the stages of a pipe."""
    made, home = archives.cinic10(tmp_path / "made", each=1), tmp_path / "sets"
    home.mkdir()
    packed = archives.tar(home / "CINIC-10.tar.gz", tmp_path / "made/CINIC-10", inside=".")
    offer(monkeypatch, server.remote("CINIC-10.tar.gz", packed.read_bytes(), "CINIC-10", "cinic10"))
    monkeypatch.setattr(photographs.Cinic10, "sizes", dict.fromkeys(made, 10))
    at_once(3, download, "cinic10", "test", home)
    assert left(home) == ["CINIC-10", "CINIC-10.tar.gz"]
    assert server.asked == [] and len(datasets.load("cinic10", "test", home)) == 10


def test_an_archive_is_unpacked_by_a_python_that_has_no_filters(tmp_path, monkeypatch):
    """3.10.0 to 3.10.11 and 3.11.0 to 3.11.3."""
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(shutil, "unpack_archive", lambda archive, folder: folder.mkdir())
    published_files._unpack(tmp_path / "a.tar.gz", tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def test_addresses_and_checksums_are_those_of_torchvision():
    from rbtools.models.torchvision_import import torchvision

    theirs, rows = torchvision.datasets, published_files.published()
    ours = {(row.dataset, row.split, row.path): (row.md5, row.url) for row in rows}
    for name, other in (("cifar10", theirs.CIFAR10), ("cifar100", theirs.CIFAR100)):
        assert ours[name, "", other.base_folder] == (other.tgz_md5, other.url)
        for split, listed in (("train", other.train_list), ("test", other.test_list)):
            for file, md5 in listed:
                assert ours[name, split, f"{other.base_folder}/{file}"] == (md5, "")
    for split, (url, file, md5) in theirs.SVHN.split_list.items():
        assert ours["svhn", split, file] == (md5, url)
    mnist = [row for row in rows if row.dataset == "mnist"]
    assert sorted((row.path, row.md5) for row in mnist) == sorted(theirs.MNIST.resources)
    assert all(row.url.removesuffix(row.path) in theirs.MNIST.mirrors for row in mnist)


def test_a_command_downloads_what_is_missing_and_only_when_asked(server, trained, tmp_path, monkeypatch):
    archives.mnist(tmp_path / "made", count=12, packed=True)
    made = {path.name: path.read_bytes() for path in (tmp_path / "made/MNIST/raw").iterdir()}
    listed = [file for file in published_files.published() if file.dataset == "mnist"]
    offered = [server.offer(file.path, made[file.path]) for file in listed]
    files = [file._replace(md5=one.md5, url=one.url) for file, one in zip(listed, offered, strict=True)]
    monkeypatch.setattr(published_files, "published", lambda: files)
    monkeypatch.setattr(digits.Mnist, "sizes", {"train": 12, "test": 12})
    attack = runner.command("attack", "--dataset mnist --data-dir sets")
    result = attack("fgsm", trained["erm"])
    assert result.exit_code == 2 and "The data set mnist was not found" in result.stderr
    assert server.asked == [] and not (tmp_path / "sets").exists()
    for _ in range(2):
        entry = runner.one(attack("fgsm --download", trained["erm"]))["evals"][-1]
        assert entry["dataset"] == "mnist" and entry["n"] == 12 and len(server.asked) == 2

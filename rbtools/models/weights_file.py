"""Reads weights files without running code in them, and writes them.

The format is recognised from the content of a file, not from its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rbtools.errors import WITHOUT_A_NETWORK, RbError, shown
from rbtools.models import programs, published, unpickle
from rbtools.models.normalize import PER_IMAGE, Normalized, PerImageStandardization, Preprocessed, per_channel
from rbtools.plain_files import opened, plain, shards_of

WANTED = "Expected a PyTorch checkpoint (.pt, .pth, .pth.tar, .ckpt) or a .safetensors file"
METADATA_KEY = "rbtools"

# Position and value of the bytes that identify a format, and the description of the format.
_OTHER_FORMATS = (
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"\xfd7zXZ\x00", "an xz archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (0, b"Rar!", "a rar archive"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (0, b"\x89HDF", f"an HDF5 file, as Keras and others write it: {WITHOUT_A_NETWORK}"),
    (0, b"\x93NUMPY", "a NumPy array"),
    (0, b"\x89PNG", "a PNG image"),
    (0, b"\xff\xd8\xff", "a JPEG image"),
    (0, b"%PDF", "a PDF document"),
    (4, b"TFL3", f"a TFLite model: {WITHOUT_A_NETWORK}"),
    (257, b"ustar", "a tar archive"),
)


def read(path: Path) -> tuple[Any, dict[str, Any], str]:
    """Return the file's content, its metadata, and its format: "torch", "safetensors" or "nats-bench".

    Tensors are on the CPU. Raises RbError if the file is missing, empty, truncated or not a weights file, or
    if it is a pickle that cannot be loaded without running code.
    """
    try:
        if path.is_file() and (shards := shards_of(path)):
            return _read_shards([Path(one) for one in shards])
        size = path.stat().st_size
        if path.is_dir():
            raise RbError(f"The checkpoint {path} is a folder. {WANTED}.")
        with opened(path) as file:
            head = file.read(1024)
    except FileNotFoundError:
        raise RbError(f"The checkpoint {path} does not exist. Check the path.") from None
    except OSError as error:
        raise RbError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from None
    if not head:
        raise RbError(f"The checkpoint {path} is empty (0 bytes). Copy or download it again.")
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**32:
        return _read_safetensors(path, size)
    if head.startswith(b"BZh"):
        return published.read_pickle(path), {}, "nats-bench"
    zipped = head.startswith(programs.ZIP)
    if not zipped and not re.match(rb"\x80[\x02-\x05]", head):
        raise RbError(f"The checkpoint {path} is {_description(path, head)}. {WANTED}.")
    return _read_torch(path, size, zipped), {}, "torch"


def _read_shards(shards: list[Path]) -> tuple[Any, dict[str, Any], str]:
    tensors: dict[str, Any] = {}
    kind = ""
    for shard in shards:
        part, _, kind = read(shard)
        if not isinstance(part, dict):
            raise RbError(f"The checkpoint {shard} is not part of a state dict (names and tensors).")
        tensors |= part
    return tensors, {}, kind


def _read_safetensors(path: Path, size: int) -> tuple[dict[str, torch.Tensor], dict[str, Any], str]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(plain(path), framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            metadata = dict(file.metadata() or {})
        own = json.loads(metadata[METADATA_KEY]) if METADATA_KEY in metadata else metadata
    except (SafetensorError, ValueError, OSError, RecursionError) as error:
        raise RbError(
            f"The checkpoint {path} is a truncated or damaged safetensors file (it has {size} bytes;"
            f" {_brief(error)}). Copy or download it again."
        ) from None
    return tensors, own if isinstance(own, dict) else {}, "safetensors"


def _refuse_other_zips(path: Path, names: list[str]) -> None:
    program = programs.format_of(b"", names)
    if program is not None:
        raise programs.refusal(path, program)
    if not any(name.endswith("data.pkl") for name in names):
        if "model.weights.h5" in names:
            raise RbError(f"The checkpoint {path} is a Keras model: {WITHOUT_A_NETWORK}.")
        inside = ", ".join(map(shown, names[:3])) + (", ..." if len(names) > 3 else "")
        raise RbError(f"The checkpoint {path} is a zip archive of other files ({inside}). {WANTED}.")


def _read_torch(path: Path, size: int, zipped: bool) -> Any:
    try:
        with opened(path) as file:
            if zipped:
                _refuse_other_zips(path, [entry.filename for entry in unpickle.members(file)])
            return unpickle.torch_file(file)
    except OSError as error:
        raise RbError(f"The checkpoint {path} cannot be read: {error.strerror or error}.") from None
    except unpickle.Refused as refused:
        raise RbError(
            f"The checkpoint {path} contains {refused.name} in addition to weights, so it was not loaded."
            " Save only the weights in the program that wrote it: torch.save(model.state_dict(), FILE)."
        ) from None
    except unpickle.NotTorch:
        raise RbError(
            f"The checkpoint {path} is a Python pickle that contains more than weights. It was not"
            f" loaded, because it could run code. {WANTED}."
        ) from None
    except unpickle.Damaged as error:
        raise RbError(
            f"The checkpoint {path} is truncated or damaged (it has {size} bytes; {_brief(error)})."
            " Copy or download it again."
        ) from None


def _brief(error: Exception) -> str:
    first = (str(error).splitlines() or [""])[0]
    return (shown(first, 100) or type(error).__name__).rstrip(".")


def _description(path: Path, head: bytes) -> str:
    for place, magic, name in _OTHER_FORMATS:
        if head.startswith(magic, place):
            return f"{name}, which may contain the weights: unpack it first" if "archive" in name else name
    if (program := programs.format_of(head, [])) is not None:
        return f"{program.what}, not a file of weights"
    text = head.decode("utf-8", "replace").strip()
    if head.startswith((b"#!", b"\x7fELF", b"MZ")):
        return f"a program, which has no weights; {WITHOUT_A_NETWORK}"
    if re.match(r"<(!doctype|html|head|\?xml|body)", text, re.IGNORECASE):
        _, *after = re.split("<title", text, maxsplit=1, flags=re.IGNORECASE)
        title, *end = re.split("</title", "".join(after).partition(">")[2], maxsplit=1, flags=re.IGNORECASE)
        said = f", titled '{shown(title.strip(), 60)}'" if end else ""
        return f"a web page{said}: the download did not return the file itself"
    if text.startswith("version https://git-lfs"):
        return "a Git LFS pointer, not the file itself: run git lfs pull"
    if "\ufffd" not in text[:-1] and all(letter.isprintable() or letter.isspace() for letter in text):
        return f"a text file that begins with '{' '.join(text.split())[:40]}'"
    return f"in an unknown format (it begins with the bytes {head[:8].hex(' ')})"


def to_bytes(network: nn.Module, metadata: Mapping[str, Any]) -> bytes:
    """Returns the bytes of a safetensors file with the tensors of the bare network and `metadata` as JSON.

    The tensors `normalize.mean` and `normalize.std` come from a `Normalized` network. Equal weights and
    metadata give equal bytes on every device and for every memory format.
    """
    from safetensors.torch import save

    network = getattr(network, "_orig_mod", network)  # unwrap torch.compile's wrapper
    bare = network.network if isinstance(network, Preprocessed) else network
    tensors = dict(bare.state_dict())
    if isinstance(network, Normalized):
        tensors |= {"normalize.mean": per_channel(network.mean), "normalize.std": per_channel(network.std)}
    if isinstance(network, PerImageStandardization):
        metadata = {**metadata, "normalize": PER_IMAGE}
    contiguous = {
        # Cloned, because safetensors refuses tensors that share memory or are channels-last.
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    # One key only: the order in which the library writes several keys changes from run to run.
    text = json.dumps(dict(metadata), sort_keys=True, allow_nan=False, separators=(",", ":"))
    return save(contiguous, {METADATA_KEY: text})

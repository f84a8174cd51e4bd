"""Errors that the user can correct, written as complete sentences.

A message states what was found, what was expected and what to do next. Any exception that is not an `RbError`
is a bug in rbtools and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import traceback
from collections.abc import Iterable, Iterator

# The advice for a model that is not a network of PyTorch, such as a program or an address.
WITHOUT_A_NETWORK = (
    "a model in another form can be evaluated with --model-cmd COMMAND, with --model-url URL, or from"
    " Python with rbtools.evaluate(FUNCTION, data, ...)"
)


class RbError(Exception):
    """The request cannot be carried out. `str(error)` is the complete message."""


class NoSplit(RbError):
    """Raised if a data set lacks the split."""


class UsageError(RbError):
    """The command line itself is invalid (exit status 2)."""


class NoRecords(RbError):
    """The input ended without a record (exit status 3). The program that writes the input may have failed."""


class Misfit(RbError):
    """The network in a checkpoint has a different number of classes or channels than the data set.

    `classes` and `channels` are the numbers of the network, or None if they are not known to differ.
    """

    def __init__(self, text: str, classes: int | None = None, channels: int | None = None) -> None:
        super().__init__(text)
        self.classes, self.channels = classes, channels


class Pending(RbError):
    """Signals, in a dry run, that work would be necessary. A `Pending` exception is not an error."""


@contextlib.contextmanager
def optional() -> Iterator[None]:
    """A context for optional checks of a user's network; exceptions that the network raises are ignored."""
    try:
        yield
    except RbError:
        raise
    except BaseException as wrong:
        if not isinstance(wrong, Exception) and not is_foreign(wrong):
            raise


def is_foreign(wrong: BaseException) -> bool:
    """True if code outside rbtools raised the exception and the exception is not a KeyboardInterrupt."""
    frames = traceback.extract_tb(wrong.__traceback__)
    return (
        not isinstance(wrong, KeyboardInterrupt)
        and bool(frames)
        and not frames[-1].filename.startswith(_HERE)
    )


def of_network(wrong: BaseException) -> str | None:
    """Return the message for an exception that a user's network raises for its input, or None.

    The innermost `forward` outside torch must not belong to rbtools, unless it wraps other networks.
    """

    def of_torch(file: str) -> bool:
        return f"{os.sep}torch{os.sep}" in file or file.startswith("<")

    frames = traceback.extract_tb(wrong.__traceback__)
    calls = [i for i, frame in enumerate(frames) if frame.filename.endswith(_MODULE_CALL)]
    inner = [frame for frame in frames[calls[0] :] if not of_torch(frame.filename)] if calls else []
    forwards = [frames[i + 1] for i in calls if i + 1 < len(frames) and frames[i + 1] in inner]
    last = forwards[-1].filename if forwards else ""
    ours = last.startswith(_HERE) and last.removeprefix(_HERE).replace(os.sep, "/") not in _AROUND
    if not calls or frames[-1].filename.startswith(_HERE) or ours:
        return None
    own = [frame for frame in inner if not frame.filename.startswith(_HERE)]
    where = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return (
        f"The network raises {type(wrong).__name__}{where}: {shown(str(wrong).strip(), 300)}. It"
        " receives float32 images (N, C, H, W) of the data set's size and must return logits (N, classes)."
        " Check that it accepts images of this size, or name another data set with --dataset."
    )


def of_own_code(wrong: BaseException) -> str | None:
    """Return the message, with file and line, for an exception in the user's code, or None."""
    packages = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
    of_python = os.path.dirname(os.__file__) + os.sep

    def installed(file: str) -> bool:
        """True if a file belongs to Python or to an installed package other than rbtools."""
        others = file.startswith(("<", of_python)) or any(folder in file for folder in packages)
        return others and not file.startswith(_HERE)

    frames = traceback.extract_tb(wrong.__traceback__)
    called = any(frame.filename.startswith(_HERE) for frame in frames)
    last = next((frame for frame in reversed(frames) if not installed(frame.filename)), None)
    if not called or last is None or last.filename.startswith(_HERE):
        return None
    what = f"{type(wrong).__name__}: {shown(str(wrong).strip(), 300)}"
    return f"{what} (in your code: {last.filename}, line {last.lineno}, in {last.name})"


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_MODULE_CALL = os.path.join("torch", "nn", "modules", "module.py")
# Files of rbtools whose modules wrap any network.
_AROUND = "models/normalize.py", "models/programs.py", "evaluation/fast_model.py", "defences/defended.py"


@contextlib.contextmanager
def in_words_of_python() -> Iterator[None]:
    """A context in which errors name Python arguments instead of options, as in `as_arguments`."""
    try:
        yield
    except RbError as wrong:
        wrong.args = (as_arguments(str(wrong)),)
        raise


def as_arguments(text: str) -> str:
    """Replace options in a message by Python arguments: `--batch-size 64` becomes batch_size=64."""

    def argument(match: re.Match[str]) -> str:
        name, value = match[1].replace("-", "_"), match[2]
        if value is None:
            return name
        return f"{name}={value}" if re.fullmatch(r"[\d.]+|[A-Z]+", value) else f"{name}='{value}'"

    return _OPTION.sub(argument, text)


# An option, with its value if this is a number, a list of numbers, a placeholder or a known word.
_OPTION = re.compile(
    r"--([a-z]+(?:-[a-z]+)*)"
    r"(?: (\d+(?:[.,]\d+)*|[A-Z]+|best|last|random|adam|sgd|step|piecewise|cosine|onecycle|constant|awp|mixup"
    r"|cutout|l2|wci|sharpness|robust|checkpoint|timm|chen-lee|example|train|eval|cpu)(?![\w-]))?"
)


def one_line(text: str) -> str:
    """Return the text with escape sequences for line ends and other control characters."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def shown(text: str, most: int = 80) -> str:
    """Return an untrusted name for use in a message, shortened and without line ends."""
    line = one_line(text[: most + 1])
    return line if len(line) <= most else line[:most] + "..."


# Synonyms of values and options. If there are several, the first one that is known is suggested.
_SAME = {
    "accuracy": ("acc", "none"),
    "alpha": ("step-size",),
    "ascending": ("lower",),
    "batch-size": ("batch",),
    "ckpt": ("checkpoint",),
    "color": ("colour",),
    "columns": ("cols", "metric"),
    "cuda": ("device",),
    "data": ("dataset",),
    "descending": ("higher",),
    "eps": ("gamma", "radius"),
    "epsilon": ("eps", "gamma"),
    "gpu": ("cuda", "device"),
    "iterations": ("steps",),
    "iters": ("steps",),
    "learning-rate": ("lr",),
    "limit": ("n", "top"),
    "list": ("ls",),
    "markdown": ("md",),
    "max-samples": ("n",),
    "model": ("checkpoint", "arch"),
    "num-samples": ("n", "samples", "sample"),
    "num-workers": ("jobs",),
    "order-by": ("by",),
    "radius": ("eps", "gamma"),
    "samples": ("n", "sample"),
    "sort": ("by",),
    "sort-by": ("by",),
    "steps": ("attack-steps",),
    "tex": ("latex",),
    "wideresnet": ("wrn-28-10",),
    "wd": ("weight-decay",),
    "workers": ("jobs",),
    "normal": ("gaussian", "erm"),
    "standard": ("erm",),
    "natural": ("erm", "none"),
    "clean": ("none", "erm"),
    "acc": ("none",),
    "identity": ("none",),
    "autoattack": ("aa",),
    "madry": ("pgd",),
    "at": ("pgd",),
    "ifgsm": ("pgd",),
    "bim": ("pgd",),
    "mim": ("mi-fgsm",),
    "di-fgsm": ("mi-fgsm",),
    "ti-fgsm": ("mi-fgsm",),
    "carlini": ("cw", "cw-l2"),
    "fast": ("n-fgsm", "fgsm-pgi"),
    "fgsm-mep": ("fgsm-pgi",),
    "fgsm-ep": ("fgsm-pgi",),
    "rotation": ("spatial",),
    "rotate": ("spatial",),
    "sparse-rs": ("pixels",),
    "l0": ("pixels",),
}


def near(name: str, known: Iterable[str], *, not_for: Iterable[str] = ()) -> str:
    """Return " Did you mean 'x'?" with the nearest known name or names, or an empty string.

    Synonyms are tried first, then names that end with this name (`train.method`), then similar spellings.
    Names in `not_for` have another meaning here, and are not suggested for their synonyms.
    """
    plain: dict[str, str] = {}  # so that PGD finds pgd
    for word in known:
        plain.setdefault(word.casefold(), word)
    text = name.casefold()
    apart = {*not_for}
    same = next((word for word in _SAME.get(text, ()) if word in plain and word not in apart), None)
    if same is not None:
        close = [plain[same]]
    else:
        ends = [word for word in plain if text.replace(".", "").isidentifier() and word.endswith(f".{text}")]
        synonym = text in _SAME  # then no similar spelling: it would mean something else
        similar = [] if synonym else difflib.get_close_matches(text, plain, n=3, cutoff=0.5)
        close = [plain[word] for word in dict.fromkeys([*ends, *similar])][:3]
    close = [word for word in close if word != name]  # what was typed is no suggestion
    if not close:
        return ""
    return " Did you mean " + " or ".join(f"'{shown(word)}'" for word in close) + "?"


def near_option(name: str, known: Iterable[str]) -> str:
    """The same as `near`, but for options: the names and the result contain the dashes."""
    answer = near(name.lstrip("-"), [flag.lstrip("-") for flag in known if flag.startswith("--")])
    return re.sub("'([^']+)'", r"'--\1'", answer)


def unknown(kind: str, name: str, known: Iterable[str], error: type[RbError] = RbError) -> RbError:
    """Return the error for a `name` of this `kind` that is not among the `known` names."""
    known = list(known)
    listed = ", ".join(shown(word) for word in known[:40]) + (", ..." if len(known) > 40 else "")
    several = "," in name and {*name.split(",")} <= {*known}
    hint = " Name only one, and run a separate command for each." if several else near(name, known)
    return error(f"Unknown {kind} '{shown(name)}'.{hint} Known: {listed}.")

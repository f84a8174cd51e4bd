"""Conversion of user input to pixel units of [0, 1].

In the command line and the public Python functions, L-infinity distances are in units of 1/255 (`8`,
`8/255`), while L2 distances and probabilistic radii are on the [0, 1] scale. All other code of rbtools uses
the [0, 1] scale.
"""

from __future__ import annotations

from rbtools.errors import UsageError

MOST = 100_000  # maximum length of a list of numbers, so that a list does not fill the memory
SEVERITIES = (1, 2, 3, 4, 5)  # of a corruption (Hendrycks and Dietterich, ICLR 2019); 5 is the worst
_SUCH_AS = {
    "--eps": "8 or 8/255",
    "--severity": "3",
    "--gamma": "0.08 or 8/255",
    "--rho": "0.05",
    "--seed": "0",
    "--milestones": "75",
}


def number(text: str | float, what: str, such_as: str = "8, 0.03 or 8/255") -> float:
    """Parse a number such as `8` or `0.03`, or a fraction such as `8/255`. Raises UsageError."""
    try:
        top, slash, bottom = str(text).partition("/")
        value = float(top) / float(bottom) if slash else float(top)
    except (ValueError, ZeroDivisionError):
        raise UsageError(
            f"{what} is '{text}'. Expected a number such as {_SUCH_AS.get(what, such_as)}."
        ) from None
    if value != value or abs(value) == float("inf"):
        raise UsageError(f"{what} is '{text}'. Expected a finite number.")
    return value


def number_list(text: str | float, what: str) -> list[float]:
    """Parse `1,2,8`, `1-5`, `0:0.15:31` (start, stop, count), or a combination. Raises UsageError."""
    if not isinstance(text, str):
        return [number(text, what)]
    values: list[float] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        first, dash, last = part.partition("-")
        if part.count(":") == 2:
            start, stop, count = part.split(":")
            values += _spaced(number(start, what), number(stop, what), count, what)
        elif dash and _is_whole(first) and _is_whole(last):
            if int(first) > int(last):
                raise UsageError(
                    f"{what} has the range '{part}', which is in reverse order. Write '{last}-{first}'."
                )
            _check_count(int(last) - int(first) + 1, part, what)
            values += map(float, range(int(first), int(last) + 1))
        else:
            values.append(number(part, what))
    if not values:
        raise UsageError(f"{what} is empty. Expected numbers such as 1,2,8 or 1-5 or 0:0.15:31.")
    return values


def whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """Parse a list of non-negative integers; an empty string is an empty list. Raises UsageError."""
    values = number_list(text, what) if text else []
    wrong = [value for value in values if value != int(value) or value < 0]
    if wrong:
        raise UsageError(f"{what} contains {wrong[0]:g}. Expected whole numbers of 0 or more, such as 0,1,2.")
    return tuple(map(int, values))


def _is_whole(text: str) -> bool:
    """True if int() accepts the text; str.isdigit also accepts superscripts and longer numbers."""
    return text.isascii() and text.isdigit() and len(text) < 20


def _check_count(count: int, part: str, what: str) -> None:
    if count > MOST:
        raise UsageError(f"{what} contains '{part}', a list of {count:,} numbers. Expected at most {MOST:,}.")


def _spaced(start: float, stop: float, count: str, what: str) -> list[float]:
    if not _is_whole(count) or int(count) < 1:
        raise UsageError(f"{what} has the count '{count}'. Write start:stop:count, such as 0:0.15:31.")
    _check_count(int(count), f"{start:g}:{stop:g}:{count}", what)
    steps = int(count) - 1
    # Rounded, because the numbers become names: 0:0.15:31 has 0.005 and not 0.005000000000000001.
    return [round(start + (stop - start) * i / steps, 12) if steps else start for i in range(int(count))]


def eps_to_pixels(text: str | float, norm: str = "linf", what: str = "--eps") -> float:
    """Convert a distance, as typed by a user, to pixel units: in L-infinity, `8` and `8/255` are both 8/255;
    in L2, the number is unchanged. Raises UsageError for numbers that are negative or unreadable, or in
    L-infinity above 255/255.
    """
    value = number(text, what, "8 or 8/255" if norm == "linf" else "0.5")
    if value < 0:
        raise UsageError(f"{what} is {value:g}. Expected a distance of 0 or more, such as {what} 8.")
    if norm != "linf":
        return value
    pixels = value if "/" in str(text) else value / 255
    if pixels > 1:
        raise UsageError(
            f"{what} is {value:g}, which is more than the whole pixel range. L-infinity distances are in"
            f" units of 1/255. Write for example {what} 8 (or 8/255)."
        )
    return pixels


def reaches(length: float, eps: float) -> bool:
    """True if steps of this total length reach the border of a ball, up to rounding errors."""
    return length >= eps * (1 - 1e-9)


def eps_slip(text: str | float, norm: str = "linf", what: str = "--eps") -> str | None:
    """Return a warning for a large L2 distance such as 8. Raises UsageError for 0.031 in L-infinity."""
    value = number(text, what, "8 or 8/255" if norm == "linf" else "0.5")
    if norm == "l2" and what == "--eps" and value > 4:
        return "is an L2 distance on [0, 1], where 0.5 or 1 is usual. For L-infinity, use --norm linf."
    if norm == "linf" and "/" not in str(text) and 0 < value < 0.1:
        meant = value * 255
        whole = abs(meant - round(meant)) <= 0.05 * meant  # 0.03 and 0.031 are roundings of 8/255
        scaled = str(round(meant)) if whole else f"{meant:.3g}"
        raise UsageError(
            f"{what} {text} is ambiguous. L-infinity distances are in units of 1/255. Write {what} {scaled}"
            f" for {value:g} on the [0, 1] scale, or {what} {text}/255."
        )
    return None

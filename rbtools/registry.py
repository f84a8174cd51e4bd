"""Registries map names to classes (attacks, methods, corruptions ...), which are imported at their first use.

A registered class is a frozen, keyword-only dataclass. The fields of the dataclass are its configuration:
they become long options on the command line, and are part of the record and of the store's key. The module of
the class imports torch from `rbtools.lazy`, so that `--help` and look-ups in the store are fast.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rbtools.check_field import check_field
from rbtools.errors import RbError, UsageError, near, shown, unknown
from rbtools.plain_files import read_plain

OWN = "python:"  # prefix of a user's own class: python:MODULE:CLASS
REQUIRED = dataclasses.MISSING  # marks a field without default


def param(
    default: object,
    help: str,
    *,
    choices: tuple[str, ...] | None = None,
    unit: str | None = None,
    name: str | None = None,
    check: str | None = None,
    metavar: str | None = None,
    optional: bool = False,
    elsewhere: str | None = None,
    bounds: str | None = None,
    typed: object = REQUIRED,
    flags: tuple[str, ...] = (),
    variable: str | None = None,
    positional: bool = False,
    last: bool = False,
    group: str | None = None,
    rare: bool = False,
    factory: Callable[[], object] | Any = REQUIRED,
) -> Any:
    """Return a dataclass field that is also a command-line option.

    `unit="eps"` marks a distance on the [0, 1] scale of pixels, which the command line reads like `--eps` (in
    1/255 for L-infinity). `name` is the public name if it is not a valid name in Python ("lambda"). `check`
    is a key of RULES in check_field.py. `metavar` is the placeholder of the value in the help. If `optional`
    is true and the field has its default value, the field is left out of records and keys, so that earlier
    results without the option remain valid. `elsewhere` is the name of the option in other programs, for a
    hint. `bounds` are the limits of a number, such as "[1, inf)" or "(0, 1)". `typed` is the default on the
    command line, if it differs from the default of the field. `factory` creates a mutable default. `flags`
    replaces the flags of the option, which are by default --NAME and, for a bool, also --no-NAME. `variable`
    is an environment variable that overrides the default. A `positional` field is typed without a flag.
    Fields with `last` follow all others. A field whose default is REQUIRED must be given. `group` is the
    heading in the help of options that several tools have (GROUPS in cli/option_groups.py). `--help` only
    names a `rare` option, and `--help-all` explains it.
    """
    metadata = dict(locals())  # all arguments
    default, factory = metadata.pop("default"), metadata.pop("factory")
    return dataclasses.field(default=default, default_factory=factory, metadata=metadata)


rare_param = functools.partial(param, rare=True)


def public_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field in records; on the command line, hyphens replace the underscores."""
    return field.metadata.get("name") or field.name


def option_name(field: dataclasses.Field[Any]) -> str:
    """Return the name of a field's option in messages, such as --epochs."""
    flags: tuple[str, ...] = field.metadata.get("flags") or ()
    return flags[0] if flags else f"--{public_name(field).replace('_', '-')}"


def options(cls: type) -> list[dataclasses.Field[Any]]:
    """Return the fields of a registered class that users may set: those created with `param`."""
    return [field for field in _fields(cls) if "help" in field.metadata]


def _fields(cls: Any) -> list[dataclasses.Field[Any]]:
    return sorted(dataclasses.fields(cls), key=lambda field: bool(field.metadata.get("last")))


def config(method: object) -> dict[str, Any]:
    """Return the configuration of a method for records and keys, which maps public names to values."""
    assert dataclasses.is_dataclass(method)
    return {
        public_name(f): getattr(method, f.name)
        for f in _fields(method)
        if not (f.metadata.get("optional") and getattr(method, f.name) == f.default)
    }


class Registered:
    """The base class of registered classes.

    If a class outside the package has no name or version, its name is the name of the class and its version
    is a digest of its module's source, so that results are measured again after the code has changed. Every
    object checks its fields when it is created, before the `__post_init__` of its class runs.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if (own := vars(cls).get("__post_init__")) is not None:
            cls.__post_init__ = _checked_first(own)  # type: ignore[method-assign,assignment]
        if cls.__module__.partition(".")[0] == "rbtools":
            return
        if getattr(cls, "name", None) is None:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()  # type: ignore[attr-defined]
        if "version" not in vars(cls):
            file = getattr(sys.modules.get(cls.__module__), "__file__", None)
            source = read_plain(file) if file and os.path.isfile(file) else b""
            cls.version = hashlib.sha256(source).hexdigest()[:16]  # type: ignore[attr-defined]

    def __post_init__(self) -> None:
        """Check the fields that users set, and convert numbers of numpy or torch to Python numbers."""
        norm = getattr(self, "norm", "linf")
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if "help" in field.metadata or field.name == "eps":
                given = getattr(self, field.name)
                label = f"{public_name(field)} of {type(self).__name__}"
                value = check_field(field, given, label, norm, getattr(self, "eps", 0.0))
                if value is not given:
                    object.__setattr__(self, field.name, value)


def _checked_first(own: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(own)
    def both(self: Registered) -> None:
        Registered.__post_init__(self)
        own(self)

    return both


@functools.cache
def rooms() -> dict[str, dict[str, str]]:
    """Map groups to {name: "module:attribute"}, from the files `entry_points.txt` in folders of the package.
    The package works without such a folder, because the folder itself registers its classes."""
    groups: dict[str, dict[str, str]] = {}
    for file in sorted(Path(__file__).parent.glob("*/entry_points.txt")):
        for line in filter(None, file.read_text("utf-8").splitlines()):
            if line.startswith("["):
                group = groups.setdefault(line.strip("[]").removeprefix("rbtools."), {})
            else:
                name, _, target = line.partition(" = ")
                group[name] = target
    return groups


def hooks(group: str) -> list[Any]:
    """Return the objects that folders of the package register in the group."""
    return [imported(target) for target in rooms().get(group, {}).values()]


@functools.cache
def gathered(group: str) -> dict[str, Any]:
    """Return the tables that folders of the package register in the group, joined to one table."""
    return {name: value for table in hooks(group) for name, value in table.items()}


def preset(group: str, name: str) -> Any:
    """Return the preset with that name or alias. Raises UsageError, which suggests similar names."""
    presets, aliases = gathered(group), gathered("preset-aliases")
    if (found := presets.get(aliases.get(name, name))) is None:
        raise unknown("preset", name, [*presets, *aliases], UsageError)
    return found


def _named_by_packages() -> bool:
    """True if the entry points of an installed package may belong to a group of rbtools. The module
    importlib.metadata takes 20 times as long to find out."""
    folders = [Path(place or ".") for place in sys.path]
    files = (file for folder in folders for file in folder.glob("*-info/entry_points.txt"))
    return any(place.is_file() for place in folders) or any(
        b"[rbtools." in file.read_bytes() for file in files
    )


@dataclasses.dataclass(frozen=True)
class CommandPreset:
    """The settings of a paper: options as a user types them, parameters of the methods, and the methods."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    methods: tuple[str, ...] = ()


def imported(target: str) -> Any:
    """Return the object that a string "module:attribute" names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Mapping[str, str]):
    """Maps names to "module:Class"; `load` imports a class, and `build` creates an object of the class.

    With a `group`, folders of the package can add entries (`rooms` reads them), which are listed before the
    names in `last`. `load` and `build` then also accept two kinds of names that are not listed: entry points
    of installed packages in the group rbtools.GROUP and, unless the registry is `closed`,
    python:MODULE:CLASS. `all` contains the names that "all" selects, which are all names except the names in
    `apart`.
    """

    changes = 0  # how many classes of users were loaded, in all registries

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, str],
        apart: Sequence[str] = (),
        group: str | None = None,
        last: Sequence[str] = (),
        closed: bool = False,
    ) -> None:
        self.kind, self.group, self.closed = kind, group, closed or group is None
        self._entries = {name: target for name, target in entries.items() if name not in last}
        self._entries |= rooms().get(group or "", {})
        self._entries |= {name: entries[name] for name in last}
        self.all = tuple(name for name in self._entries if name not in apart)
        self._own: dict[str, type] = {}  # maps their own names to the user's classes that were loaded

    def __getitem__(self, name: str) -> str:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @functools.cached_property
    def plugins(self) -> dict[str, str]:
        """Map names to "module:Class" for the entry points of installed packages."""
        if not self.group or not _named_by_packages():
            return {}
        from importlib import metadata

        points = metadata.entry_points(group=f"rbtools.{self.group}")
        return {one.name: one.value for one in points if one.name not in self._entries}

    def knows(self, name: str) -> bool:
        """True if `load` accepts the name, as far as this is known without an import."""
        return (
            name in self._entries
            or (not self.closed and name.startswith(OWN))
            or (self.group is not None and name in self.plugins)
        )

    def load(self, name: str) -> Any:
        """Import the class of that name. Raises RbError if the name is unknown, or if a user's class does not
        exist or is not a dataclass of the right base class."""
        if name in self._entries:
            return imported(self._entries[name])
        if not self.knows(name):
            raise unknown(self.kind, name, [*self._entries, *(self.plugins if self.group else ())])
        loaded = _imported(self.kind, name, self.plugins.get(name, name.removeprefix(OWN)))
        return loaded if self.closed else self._fitting(name, loaded)

    def docstring(self, name: str) -> str:
        """Return the docstring of a class. For a listed class, it is read from the source, because an import
        takes ten times as long."""
        module, _, attribute = self._entries.get(name, "").partition(":")
        file = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
        if module and module not in sys.modules and file.is_file():
            source = file.read_text("utf-8").partition(f"\nclass {attribute}(")[2]
            before, _, rest = source.partition(':\n    """')
            docstring, end, _ = rest.partition('"""')
            if end and "\\" not in docstring and "\n" not in before:
                return docstring
        return self.load(name).__doc__ or ""

    def of_name(self, name: object) -> Any | None:
        """Return the class with this name, or None if it is unknown, or a user's class that is not loaded."""
        if not isinstance(name, str) or name.startswith(OWN):
            return None
        return self._own.get(name) or (self.load(name) if self.knows(name) else None)

    def loaded(self) -> Iterator[tuple[str, Any]]:
        """Yields every listed name with its class."""
        return ((name, self.load(name)) for name in self)

    def _fitting(self, name: str, loaded: object) -> type:
        base = next(b for b in reversed(self.load(next(iter(self))).__mro__) if Registered in b.__bases__)
        if (
            not isinstance(loaded, type)
            or not issubclass(loaded, base)
            or not getattr(vars(loaded).get("__dataclass_params__"), "frozen", False)
        ):
            raise RbError(
                f"The {self.kind} {name} has the wrong type. Expected a frozen, keyword-only dataclass that"
                f" inherits from {base.__module__}.{base.__name__}."
            )
        if loaded.name in self._entries:  # type: ignore[attr-defined]
            raise RbError(
                f"The {self.kind} {name} has the name '{loaded.name}', which is already in use. Rename the"  # type: ignore[attr-defined]
                " class, or give it a field name: ClassVar[str]."
            )
        own_name = str(loaded.name)  # type: ignore[attr-defined]
        if name in self.plugins and own_name != name:
            raise RbError(
                f"The entry point {name} is the class {loaded.__name__}, which has the name '{own_name}'."
                " Give both of them the same name."
            )
        self._own[loaded.name] = loaded  # type: ignore[attr-defined]
        Registry.changes += 1
        return loaded

    def build(self, name: str, **params: object) -> Any:
        """Create an object of the named class with these parameters (public or Python names).

        Raises RbError for an unknown name, an unknown parameter, or a value out of range.
        """
        cls = self.load(name)
        fields = {f.name: f for f in dataclasses.fields(cls)}
        by_public = {public_name(f): f.name for f in fields.values()}
        values = {}
        for key, value in params.items():
            python_name = by_public.get(key, key)
            if python_name not in fields:
                raise RbError(
                    f"{self.kind.capitalize()} '{name}' has no parameter '{key}'."
                    f"{near(key, by_public)} Parameters: {', '.join(by_public) or 'none'}."
                )
            values[python_name] = value
        norm = values.get("norm", getattr(cls, "norm", "linf"))
        for key, value in values.items():
            label = f"{public_name(fields[key])} of {self.kind} '{name}'"
            eps = values.get("eps", getattr(cls, "eps", 0.0))
            values[key] = check_field(fields[key], value, label, norm, eps)
        return cls(**values)


def _imported(kind: str, name: str, place: str) -> object:
    module, colon, attribute = place.partition(":")
    if not (module and colon and attribute):
        raise RbError(f"The {kind} {name} does not name a class. Expected {OWN}MODULE:CLASS.")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # finds the user's own modules, as `python -m` does; workers get it, too
    importlib.import_module("rbtools.torchvision_hook")  # the module may import torchvision
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise RbError(
                f"There is no module {module} in the working directory or among the installed packages."
            ) from None
        raise RbError(f"The module {module} needs {error.name}, which is not installed.") from None
    except (Exception, SystemExit) as error:
        hint = " Write @dataclass(frozen=True, kw_only=True) above the class." * ("frozen" in str(error))
        raise RbError(
            f"The module {module} stopped with {type(error).__name__}: {shown(str(error), 200)}.{hint}"
        ) from error
    if not hasattr(loaded, attribute):
        raise RbError(f"The module {module} has no {attribute}.{near(attribute, vars(loaded))}")
    return getattr(loaded, attribute)

"""Code that is not rlexp's: the user's classes and modules that an experiment names, and what installed packages bring.

Nothing of it is imported here. Packages bring agents and envs by their entry points.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rlexp.config.keys.fields import RULE, plain_data


@dataclass(frozen=True)
class UserModules:
    """The modules that a run may import although they are not installed."""

    imports: tuple[str, ...] = ()
    """Modules that register envs (``--import``)."""
    folders: tuple[str, ...] = ()
    """Absolute folders in which these and the modules of env classes are searched after all installed ones."""
    decided: tuple[str, ...] | None = None
    """The only modules that may be imported by name; None: any, as it is the user's own experiment.

    Others were refused before; this is a second check, also in processes that got a part of a run.
    """

    @staticmethod
    def of(content: Mapping[str, Any]) -> UserModules:
        """Return the modules from fields that passed through JSON."""
        decided = content["decided"]
        return UserModules(
            tuple(content["imports"]), tuple(content["folders"]), None if decided is None else tuple(decided)
        )


@dataclass(frozen=True)
class UserPart:
    """A class of the user that an experiment names."""

    key: str
    """The key that names it, from the experiment on: ``config.model.custom_model``."""
    name: str
    """``package.module:Class``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments in the file."""
    base: str = ""
    """The base class that it needs, as its user knows it: ``gymnasium.Wrapper``; empty: not said."""

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.name.partition(":")[0]


NO_MODULES = UserModules()
"""The modules of a run that imports only installed ones."""


def modules_of(env: str) -> tuple[str, ...]:
    """Return the modules that an env's name makes a run import: that in ``package.module:Class``, or none."""
    module, colon, _ = env.partition(":")
    return (module,) if colon else ()


def env_classes_in(file: Path) -> tuple[str, ...]:
    """Return the classes of a module that derive from ``Env``, as ``module:Class``; the module is read, not run."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return tuple(f"{file.stem}:{each.name}" for each in classes if any(map(_is_env_class, each.bases)))


def _is_env_class(base: ast.expr) -> bool:
    name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    return name.endswith("Env")


def folders_for(files: Iterable[Path]) -> tuple[str, ...]:
    """Return the folders for modules of experiment files: the current folder, then the files' folders."""
    return with_current_folder(str(file.absolute().parent) for file in files)


def with_current_folder(folders: Iterable[str]) -> tuple[str, ...]:
    """Return the folder in which the command was started, then ``folders``."""
    return tuple(dict.fromkeys((str(Path.cwd()), *folders)))


_NAME: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_ARGUMENT: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True)
class UserClass:
    """A class and its keyword arguments: ``package.module:Class``, or ``{package.module:Class: {argument: value}}``.

    A type of keys: it is read from either form, and written in the shorter complete one.
    """

    EXPECTED: ClassVar[str] = "package.module:Class or {package.module:Class: {argument: value}}"
    """What a key of this type expects, in words."""

    name: str
    """``package.module:Class``."""
    kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments."""

    def as_part(self, key: str, base: str = "") -> UserPart:
        """Return it as the part that ``key`` names, such as ``config.env_wrappers.0``; it derives from ``base``."""
        return UserPart(key, self.name, self.kwargs, base)

    @classmethod
    def read(cls, value: Any) -> Self:
        """Return what ``value`` of a file names; raises PydanticCustomError for any other value."""
        if isinstance(value, cls):
            return value
        name, kwargs = value, None
        if isinstance(value, Mapping) and len(value) == 1:
            ((name, kwargs),) = value.items()
        if not isinstance(name, str) or not _NAME.fullmatch(name) or not _are_arguments(kwargs):
            raise PydanticCustomError(RULE, "must be {words}", {"words": cls.EXPECTED})
        return cls(name, plain_data(dict(kwargs or {})))

    def written(self) -> str | dict[str, dict[str, Any]]:
        """Return its form in a file."""
        return {self.name: dict(self.kwargs)} if self.kwargs else self.name

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(cls.written)
        return core_schema.no_info_plain_validator_function(cls.read, serialization=serialization)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        name = f"^{_NAME.pattern}$"
        arguments = {"type": ["object", "null"]}
        named = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
        return {"anyOf": [{"type": "string", "pattern": name}, named | {"patternProperties": {name: arguments}}]}


def _are_arguments(kwargs: Any) -> bool:
    if kwargs is None:  # ``{package.module:Class: }``
        return True
    return isinstance(kwargs, Mapping) and all(isinstance(name, str) and _ARGUMENT.fullmatch(name) for name in kwargs)


UserClasses = Annotated[tuple[UserClass, ...], Field(strict=False)]
"""A list of them."""


INSTALLED_IN: tuple[str, ...] = tuple(path for path in sys.path if path not in ("", str(Path.cwd())))
"""Where packages are searched: without the folders of experiments and runs, which come to ``sys.path`` later."""


@dataclass(frozen=True)
class PackageEntry:
    """An entry point, and its packages."""

    name: str
    """The name in its package's spelling."""
    value: str
    """``package.module:attribute``."""
    packages: tuple[str, ...]
    """The packages with an entry point of this name, as pip shows them. The first one in the path is first; this is its
    entry point."""

    @property
    def package(self) -> str:
        """The package of the entry point."""
        return self.packages[0]

    @property
    def module(self) -> str:
        """The module that has it."""
        return self.value.partition(":")[0]


def entry_points(group: str, key_of: Callable[[str], str] = str) -> Mapping[str, PackageEntry]:
    """Return the entry points of installed packages in a group, by ``key_of`` their names."""
    return _entry_points(INSTALLED_IN, group, key_of)


@cache
def _entry_points(path: tuple[str, ...], group: str, key_of: Callable[[str], str]) -> Mapping[str, PackageEntry]:
    from importlib.metadata import distributions  # its import takes longer than all keys

    found: dict[str, PackageEntry] = {}
    seen: set[str] = set()
    for distribution in distributions(path=list(path)):
        package = distribution.metadata["Name"]
        if package is None or _as_pip_compares(package) in seen:  # the first in the path is the one that is imported
            continue
        seen.add(_as_pip_compares(package))
        for entry in distribution.entry_points.select(group=group):
            first = found.get(key_of(entry.name), PackageEntry(entry.name, entry.value, ()))
            found[key_of(entry.name)] = PackageEntry(first.name, first.value, (*first.packages, package))
    return MappingProxyType(found)


def _as_pip_compares(package: str) -> str:
    """Return the same name for all spellings of a package: ``my-cql`` for My_CQL and my.cql."""
    return re.sub(r"[-_.]+", "-", package).lower()

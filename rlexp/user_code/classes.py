"""Imports the user's modules, and finds the classes in them that an experiment names."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterable
from typing import Any, TypeVar

from rlexp.config.keys.user_code import UserModules
from rlexp.errors import ResumeError, UsageError
from rlexp.user_code.import_guard import GUARD

WHERE_MODULES_ARE = "it is searched in installed packages, the current folder and the experiment file's folder"

Class = TypeVar("Class")


def prepare_imports(named: Iterable[str], modules: UserModules) -> None:
    """Make the modules ``named`` importable, and import ``modules.imports``; UsageError if one cannot be.

    Folders come last in Python's search path, and only if a module is named: a file there can neither replace an
    installed module nor be imported by accident.
    """
    named = list(named)
    if not modules.imports and not any(named):
        return
    for name in named:
        if modules.decided is not None and name not in modules.decided:
            raise ResumeError(f"the module {name} is not imported: nobody has allowed it", "see --allow-class")
    if modules.decided is not None:  # also in processes that got a part of a run
        GUARD.allow(modules.folders)
    sys.path += [folder for folder in modules.folders if folder not in sys.path]
    for name in modules.imports:
        try:
            importlib.import_module(name)
        except (ImportError, TypeError, ValueError) as error:  # the last two for names like ..a and for no name
            raise UsageError(f"--import {name}: it cannot be imported: {error}", WHERE_MODULES_ARE) from error


def find_class(what: str, name: str, base: type[Class], base_name: str) -> type[Class]:
    """Return the class that ``package.module:Class`` names; its module is imported.

    ``what`` begins messages, such as ``env`` or a key. Raises UsageError for anything but a class derived from
    ``base``, which the user knows as ``base_name``. Arguments in a file are for such classes only, as ``os:system``
    would run them.
    """
    return derived(what, name, find_object(what, name), base, base_name)


def find_object(what: str, name: str) -> Any:
    """Return the object ``package.module:name``; its module is imported. Raises UsageError if there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        message = f"{what} {name}: module {module_name} cannot be imported: {error}"
        raise UsageError(message, WHERE_MODULES_ARE) from error
    found = getattr(module, attribute, None)
    if found is None:
        close = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"did you mean {close[0]}?" if close else None
        raise UsageError(f"{what} {name}: module {module_name} has no {attribute}", hint)
    return found


def derived(what: str, name: str, found: Any, base: type[Class], base_name: str) -> type[Class]:
    """Return ``found``, which ``name`` names, if it is a class derived from ``base``; raises UsageError if not."""
    if not isinstance(found, type) or not issubclass(found, base):
        class_name = name.partition(":")[2]
        raise UsageError(f"{what} {name}: {class_name} is not a {base_name}", f"it must derive from {base_name}")
    return found

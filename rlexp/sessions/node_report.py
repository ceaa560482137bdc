"""What a node of a cluster finds out about itself. The function is sent there whole: rlexp may not be installed."""

from __future__ import annotations

from typing import Any


def measured(modules: list[str], packages: list[str], folders: list[str], marker: str | None) -> dict[str, Any]:
    """Return versions, memory in bytes, whether ``marker`` exists, and why modules cannot be imported, by name.

    ``modules`` are imported, from ``folders`` too; of installed ``packages`` it is only looked whether they are there.
    """
    import importlib
    import importlib.metadata
    import importlib.util
    import os
    import platform
    import sys

    def version(name: str) -> str | None:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None

    facts: dict[str, Any] = {
        "hostname": platform.node(),
        "python": platform.python_version(),
        "ray": version("ray"),
        "torch": version("torch"),
        "rlexp": None,
        "memory_total": None,
        "memory_available": None,
        "sees_out": marker is not None and os.path.exists(marker),
    }
    failed: dict[str, str] = {}
    try:
        from rlexp import __version__
        from rlexp.machine import this_machine

        machine = this_machine()
        facts["rlexp"] = __version__
        facts |= {"memory_total": machine.memory_total, "memory_available": machine.memory_available}
    except ModuleNotFoundError as error:
        if error.name != "rlexp":
            failed["rlexp"] = str(error)
    sys.path += [folder for folder in folders if modules and folder not in sys.path]
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # it is code of the user's
            failed[name] = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
    for name in packages:
        if importlib.util.find_spec(name) is None:
            failed[name] = "it is not installed"
    return {**facts, "failed_imports": failed}

"""What a node of a cluster finds out about itself. The functions are sent there whole: rlexp may not be installed."""

from __future__ import annotations

from typing import Any


def measured(
    modules: list[str],
    packages: list[str],
    folders: list[str],
    marker: str | None,
    servers: dict[str, tuple[str, int]],
    files: list[str],
) -> dict[str, Any]:
    """Return versions, memory in bytes, whether ``marker`` exists, and why modules cannot be imported, by name.

    ``modules`` are imported, from ``folders`` too; of installed ``packages`` it is only looked whether they are there.
    Also why ``servers``, hosts and ports by name, cannot be reached, and which of ``files`` cannot be read.
    """
    import importlib
    import importlib.metadata
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
        except BaseException as error:  # it is code of the user's
            failed[name] = (f"{type(error).__name__}: {error}".splitlines() or [""])[0]
    failed |= {name: "it is not installed" for name in packages if not is_installed(name)}
    missing = [path for path in files if not os.access(path, os.R_OK)]
    return {**facts, "failed_imports": failed, "unreachable": unreachable(servers), "missing_files": missing}


def is_installed(package: str) -> bool:
    """Return whether a package can be found; it is not imported."""
    import importlib.util

    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def unreachable(servers: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Return why servers cannot be reached, by their names; without those that can."""
    import socket

    failed: dict[str, str] = {}
    for name, (host, port) in servers.items():
        try:
            socket.create_connection((host, port), timeout=5.0).close()
        except OSError as error:
            failed[name] = error.strerror or str(error) or type(error).__name__
    return failed

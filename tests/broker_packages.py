"""Servers for tests, without root: what is installed, or else Debian's packages unpacked into a cache folder."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from filelock import FileLock

_CACHE: Final = Path(os.path.expanduser(os.environ.get("RLEXP_BROKERS", "~/.cache/rlexp-test-brokers")))
_DOWNLOAD_S: Final = 45.0
_RETRY_S: Final = 600.0
"""For so long nobody tries again what has failed: other processes of the same test run would wait for it too."""


class NoBroker(Exception):  # noqa: N818
    """Why a server cannot be had."""


@contextmanager
def required(name: str) -> Iterator[None]:
    """Skip the test, or fail it with RLEXP_REQUIRE_BROKERS=1, where the body raises NoBroker."""
    try:
        yield
    except NoBroker as error:
        if os.environ.get("RLEXP_REQUIRE_BROKERS") == "1":
            pytest.fail(f"no {name}: {error}")
        pytest.skip(f"no {name}: {error}")


def installed_program(*names: str) -> Path | None:
    """Return the first program of these names that is on the path."""
    return next((Path(found) for name in names if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class Packages:
    """Debian's packages of one server, and those of the libraries that not every machine has."""

    name: str
    path: str
    """Of the program within the packages; may have wildcards."""
    packages: tuple[str, ...]

    def program(self) -> Path:
        """Return the program in the cache folder, downloaded by the first who asks; raises NoBroker."""
        folder, failure = _CACHE / self.name, _CACHE / f"{self.name}.failure"
        try:
            _CACHE.mkdir(parents=True, exist_ok=True)
            with FileLock(_CACHE / f"{self.name}.lock", timeout=3 * _DOWNLOAD_S):
                if found := next(folder.glob(self.path), None):
                    return found
                if failure.exists() and time.time() - failure.stat().st_mtime < _RETRY_S:
                    raise NoBroker(failure.read_text(encoding="utf-8"))
                try:
                    return self._download(folder)
                except NoBroker as error:
                    failure.write_text(str(error), encoding="utf-8")
                    raise
        except (OSError, TimeoutError) as error:
            raise NoBroker(f"it is not installed, and {_CACHE} cannot be used ({error})") from error

    def _download(self, folder: Path) -> Path:
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise NoBroker("it is not installed, and its package can be had on Debian and Ubuntu only")
        with tempfile.TemporaryDirectory(dir=_CACHE) as temporary:
            _run(["apt-get", "download", "-o", "Acquire::Retries=0", *self.packages], temporary)
            unpacked = Path(temporary, "unpacked")
            for package in Path(temporary).glob("*.deb"):
                _run(["dpkg", "-x", str(package), str(unpacked)], temporary)
            if not any(unpacked.glob(self.path)):
                raise NoBroker(f"its package does not have {self.path}")
            unpacked.rename(folder)
        return next(folder.glob(self.path))


def library_environment(program: Path) -> dict[str, str]:
    """Return the environment in which ``program`` finds the libraries that were downloaded with it."""
    if _CACHE not in program.parents:
        return dict(os.environ)
    root = _CACHE / program.relative_to(_CACHE).parts[0]
    libraries = [str(path) for folder in ("usr/lib", "lib") for path in (root / folder).glob("*-linux-gnu*")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def dies_with_us() -> list[str]:
    """Return the words before a command that end it when this process ends, however that does."""
    return ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


def _run(command: list[str], folder: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_DOWNLOAD_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise NoBroker(f"it is not installed, and {' '.join(command[:2])} fails ({type(error).__name__})") from error

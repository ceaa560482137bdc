"""The folder and the environment that the blocks of one page run in, and the processes that they start there."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from tests.pages.blocks import Block

REPOSITORY = Path(__file__).parents[2]
BLOCK_S = 180.0
"""The longest that a block may take, on two cores that do other things too."""
END_S = 30.0
"""The longest that a process may take to end after SIGTERM: a trial writes a checkpoint."""
_KEPT = frozenset({"LANG", "LC_ALL", "TZ", "PYTHONPATH", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"})
_PROGRAMS = os.path.dirname(sys.executable)
_TRAINING = "run|sweep|submit"

Output = tuple[int, str]
"""An exit status, and what was printed."""


@dataclass(frozen=True)
class Started:
    """A process group of a block, whose output goes to a file."""

    process: subprocess.Popen[bytes]
    output: Path

    def wait(self, bound_s: float) -> Output:
        """Wait for the end; what takes longer than the bound is ended, with status 124 as timeout(1) has."""
        try:
            status = self.process.wait(bound_s)
        except subprocess.TimeoutExpired:
            self.end()
            return 124, f"{self.text()}\nended after {bound_s:.0f} s"
        return status, self.text()

    def end(self) -> None:
        """End the whole group, also where its first process has ended: SIGTERM first, so that a run can write files."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + END_S
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
            while self._left() and time.monotonic() < until:
                self.process.poll()
                time.sleep(0.02)
        self.process.wait(END_S)

    def _left(self) -> bool:
        """Say whether a process of the group runs; one that has ended counts no more, whether it was reaped or not."""
        return any(_runs_in(process, self.process.pid) for process in psutil.process_iter())

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8", errors="replace")

    def printed(self, text: str, bound_s: float) -> bool:
        """Wait until the process has printed ``text``; false where it ended or the bound passed before."""
        until = time.monotonic() + bound_s
        while text not in self.text():
            if self.process.poll() is not None or time.monotonic() > until:
                return text in self.text()
            time.sleep(0.05)
        return True


def _runs_in(process: psutil.Process, group: int) -> bool:
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@dataclass
class PageFolder:
    """A folder with a copy of ``experiments``; whoever opened it ends what was started in it."""

    folder: Path
    private: Path
    started: list[Started] = field(default_factory=list)

    def save(self, block: Block) -> None:
        """Write a block that has a file name; raises ValueError for a name outside of the folder."""
        path = (self.folder / block.directions.file).resolve()
        if not path.is_relative_to(self.folder.resolve()):
            raise ValueError(f"{block.place}: file= names a file outside of the page's folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")

    def start(self, block: Block) -> Started:
        """Start a block in a session of its own."""
        output = self.private / f"output-{block.line}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                self._command(block),
                cwd=self.folder,
                env=self._environment(block),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.append(Started(process, output))
        return self.started[-1]

    def failed_line(self, block: Block) -> int:
        """Return the line of the page that ended a bash block early, 0 where that is not known."""
        written = self._mark(block)
        return block.line + int(written.read_text()) - 1 if written.exists() else 0

    def _command(self, block: Block) -> list[str]:
        if block.language == "python":
            # In the page's folder, which Python searches for the modules that a script imports.
            script = self.folder / f"page_line_{block.line}.py"
            script.write_text(block.text, encoding="utf-8")
            return [sys.executable, script.name]
        script = self.private / f"block-{block.line}.sh"
        script.write_text(bash_script(block, self._mark(block)), encoding="utf-8")
        return ["bash", "-e", str(script)]

    def _mark(self, block: Block) -> Path:
        return self.private / f"failed-{block.line}"

    def _environment(self, block: Block) -> dict[str, str]:
        """Nothing of whoever runs the tests, except where packages and certificates are."""
        home = self.private / "home"
        home.mkdir(exist_ok=True)
        programs = [_PROGRAMS, os.environ.get("PATH", os.defpath)]
        if block.directions.extra_words:
            programs.insert(0, str(self._longer_commands(block)))
        kept = {name: value for name, value in os.environ.items() if name in _KEPT}
        return {**kept, "PATH": os.pathsep.join(programs), "HOME": str(home), "TERM": "dumb", "COLUMNS": "120"}

    def _longer_commands(self, block: Block) -> Path:
        """Return a folder with an ``rlexp`` that adds the block's words to each command that trains."""
        folder = self.private / f"programs-{block.line}"
        folder.mkdir()
        program = folder / "rlexp"
        real, words = shlex.quote(os.path.join(_PROGRAMS, "rlexp")), shlex.join(block.directions.extra_words)
        program.write_text(
            f'#!/bin/sh\ncase "$1" in\n  {_TRAINING}) exec {real} "$@" {words} ;;\n  *) exec {real} "$@" ;;\nesac\n',
            encoding="utf-8",
        )
        program.chmod(0o755)
        return folder


def bash_script(block: Block, mark: Path) -> str:
    """Return the block as a script that writes the number of the line that failed to ``mark``, from 1.

    What is added is the script's first line, so Bash counts the block's lines from 2.
    """
    return f"trap 'echo $((LINENO - 1)) > {shlex.quote(str(mark))}' ERR\n{block.text}"


@contextmanager
def page_folder() -> Iterator[PageFolder]:
    """Make the folder of a page; at the end its processes are ended, the last one first, and it is deleted."""
    # A short path: Ray's sockets are in it, and their paths have at most 107 bytes.
    with TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True) as name:
        folder, private = Path(name, "folder"), Path(name, "private")
        private.mkdir()
        shutil.copytree(REPOSITORY / "experiments", folder / "experiments")
        opened = PageFolder(folder, private)
        try:
            yield opened
        finally:
            for started in reversed(opened.started):
                started.end()

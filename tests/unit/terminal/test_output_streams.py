"""A stream whose reader is gone ends a command that only prints, and nothing but the output of one that trains."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from rlexp.runs.record import Status
from rlexp.terminal.displays import JsonDisplay, PlainDisplay
from rlexp.terminal.lines import OutputFile, open_output_streams, outlive_readers
from tests.unit.conftest import MakeRow, MakeTrial, make_row, make_trial  # noqa: F401 - fixtures

Lose = Callable[[str], io.TextIOWrapper]


@pytest.fixture
def lose(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lose]:
    """Replaces a standard stream by a pipe that nobody reads."""
    descriptors = []

    def replace(name: str) -> io.TextIOWrapper:
        reader, writer = os.pipe()
        os.close(reader)
        descriptors.append(writer)
        stream = io.TextIOWrapper(io.BufferedWriter(OutputFile(writer)), "utf-8")
        monkeypatch.setattr(sys, name, stream)
        return stream

    yield replace
    for descriptor in descriptors:
        os.close(descriptor)


def test_closed_pipe_ends_a_command_with_the_code_of_sigpipe(lose: Lose) -> None:
    lose("stdout")
    with pytest.raises(SystemExit) as end:
        print("first", flush=True)
    assert end.value.code == 141
    print("dropped", flush=True)  # as the interpreter does at its end


def test_full_disk_is_an_error_of_a_command_that_only_prints() -> None:
    stream = io.TextIOWrapper(io.BufferedWriter(OutputFile(os.open("/dev/full", os.O_WRONLY))), "utf-8")
    with pytest.raises(OSError, match="No space left") as caught:
        print("text", file=stream, flush=True)
    assert caught.value.errno == errno.ENOSPC
    stream.flush()
    os.close(stream.fileno())


def test_command_that_trains_outlives_its_reader_and_says_so_once(
    lose: Lose, capsys: pytest.CaptureFixture[str]
) -> None:
    lose("stdout")
    outlive_readers()
    for _ in range(3):
        print("text", flush=True)
    assert capsys.readouterr().err == "notice: cannot write to stdout (Broken pipe); the command continues without it\n"


def test_command_that_trains_outlives_lost_stderr(lose: Lose) -> None:
    stderr = lose("stderr")
    outlive_readers()
    print("text", file=stderr, flush=True)


@pytest.mark.parametrize("kind", [JsonDisplay, PlainDisplay])
def test_displays_are_silent_after_stdout_is_lost(
    kind: type[JsonDisplay | PlainDisplay],
    lose: Lose,
    make_trial: MakeTrial,  # noqa: F811
    make_row: MakeRow,  # noqa: F811
) -> None:
    stdout, stderr = lose("stdout"), lose("stderr")
    outlive_readers()
    display = JsonDisplay(stdout) if kind is JsonDisplay else PlainDisplay(stdout, stderr)
    trial = make_trial()
    with display:
        display.on_trial_start(trial)
        for iteration in range(1, 4):
            display.on_result(trial, make_row(iteration))
        display.on_trial_end(trial, Status.TERMINATED, None)


def test_streams_keep_the_encoding_that_python_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    original = io.TextIOWrapper(io.BufferedWriter(io.FileIO(writer, "w")), "latin-1", "replace")
    monkeypatch.setattr(sys, "stdout", original)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    open_output_streams()
    assert sys.stdout is not original
    print("ä€", flush=True)
    assert os.read(reader, 100) == b"\xe4?\n"
    os.close(reader)
    original.close()


def test_missing_streams_become_the_null_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    open_output_streams()
    for stream in (sys.stdout, sys.stderr):
        print("text", file=stream, flush=True)
        assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == os.devnull
        os.close(stream.fileno())

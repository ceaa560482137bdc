"""Errors and notices quote names and texts that may be anybody's.

``rlexp explain``: every name that a file or a result may have is explained.

A stream whose reader is gone ends a command that only prints, and nothing but the output of one that trains.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from rlexp.agents.checkpoint import Evaluation
from rlexp.config.domains import GRID, PYTHON_KEYS, SAMPLERS
from rlexp.config.keys.ddpg import DDPGConfig
from rlexp.config.keys.dqn import DQNConfig
from rlexp.config.keys.evolution import ESConfig
from rlexp.config.keys.impala import APPOConfig
from rlexp.config.keys.metrics import KNOWN_METRICS
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.keys.pqn import PQNConfig
from rlexp.config.keys.sac import SACConfig
from rlexp.config.keys.search import SearchConfig
from rlexp.config.reference.explain import named_values
from rlexp.errors import ConfigError, Notice, Problem, RlexpError, UsageError
from rlexp.rollout.evaluation import PlayedEpisodes
from rlexp.runs.record import Status
from rlexp.runs.rows import COLUMNS
from rlexp.terminal.displays import JsonDisplay, PlainDisplay
from rlexp.terminal.explanations import print_explanation
from rlexp.terminal.lines import (
    OutputFile,
    aligned,
    open_output_streams,
    outlive_readers,
    print_error,
    print_notice_list,
    visible,
)
from rlexp.terminal.results import EvaluationProgress, print_evaluation
from rlexp.terminal.summary import configuration_words
from tests.lab.terminals import Terminal
from tests.unit.conftest import MakeRow, MakeTrial

SEARCHERS = [name for each in get_args(SearchConfig.model_fields["searcher"].annotation) for name in get_args(each)]
SCHEDULERS = list(get_args(SearchConfig.model_fields["scheduler"].annotation))
AGENTS = (DQNConfig, PPOConfig, PQNConfig, DDPGConfig, SACConfig, APPOConfig, ESConfig)
METRICS = [*COLUMNS, *(name for agent in AGENTS for name in agent.AGENT_COLUMNS), *KNOWN_METRICS]
VALUES = [GRID, PYTHON_KEYS[0], *SAMPLERS, *SEARCHERS, *SCHEDULERS]


def explained(name: str | None, capsys: pytest.CaptureFixture[str]) -> str:
    print_explanation(name)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    return printed


@pytest.mark.parametrize("name", METRICS)
def test_every_column_of_a_result_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = explained(name, capsys).splitlines()
    assert lines[0] == f"{name} (metric)"
    assert len(lines) > 1


@pytest.mark.parametrize("name", VALUES)
def test_every_sampler_searcher_and_scheduler_is_explained(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    first, *rest = explained(name, capsys).splitlines()
    assert first.startswith(f"{name} (")
    assert any(line.startswith("  example: ") for line in rest)


def test_explained_names_exist() -> None:
    assert {each.name for each in named_values()} == {*METRICS, *VALUES}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("replay_fill", "info/replay_fill (metric)"),
        ("loss", "info/learner/loss (metric)"),
        ("num_env_steps_sampled_lifetime", "timesteps_total (metric)"),
        ("env_runners/episode_return_mean", "episode_reward_mean (metric)"),
        ("asha", "  keys:    time_attr, grace_period, reduction_factor, brackets"),
        ("search.pbt.quantile_fraction", "  default: 0.25"),
        ("vf_clip_param", "  default: 10.0 (PPO, DDPPO)"),
    ],
)
def test_explanation_has_other_spellings_and_keys_of_groups(
    name: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in explained(name, capsys).splitlines()


def test_defaults_in_the_list_are_not_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert "..." not in explained(None, capsys)
    assert "truncate_episodes" in explained("PPO", capsys)


@pytest.mark.parametrize(
    ("name", "hint"), [("loguniforms", "loguniform"), ("episode_reward_maen", "episode_reward_mean")]
)
def test_misspelt_name_is_answered_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"unknown name {name}") as caught:
        print_explanation(name)
    assert caught.value.hint == f"did you mean {hint}?"


ESCAPES = "\x1b[2J\x07\x9b31m\u202e"


def test_cells_of_a_table_are_on_one_line_without_control_characters() -> None:
    assert list(aligned([("a\nb", "\x1b[2J\u202e"), ("c", "d")])) == [r"a\nb  \x1b[2J\u202e", "c     d"]
    assert configuration_words({"name": "x\n\x1b]0;y\a"}) == r"name=x\n\x1b]0;y\x07"


def test_quoted_control_characters_are_spelt_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(RlexpError(f"a trial {ESCAPES}", f"the hint {ESCAPES}"))
    print_notice_list([Notice(ESCAPES, ESCAPES)], "")
    said = capsys.readouterr().err
    assert said.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x07\\x9b31m\\u202e" in said


@pytest.mark.parametrize(
    ("count", "last"), [(20, "error: g.yaml:19  no"), (21, "error: … and 1 more errors; rlexp check --json prints all")]
)
def test_error_prints_20_problems_and_the_number_of_the_others(
    count: int, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_error(ConfigError([Problem(f"g.yaml:{number}", "no") for number in range(count)]))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == min(count, 20) + (count > 20)
    assert lines[-1] == last


def test_notice_list_prints_the_first_and_counts_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice_list([Notice(f"a.yaml:{line}:1", "old") for line in range(500)], "; --json prints all")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[-1] == "notice: … and 480 more notices; --json prints all"


def test_visible_keeps_letters_of_all_languages_and_line_ends() -> None:
    assert visible("Übung 練習\nзавтра 'quoted'") == "Übung 練習\nзавтра 'quoted'"


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
    kind: type[JsonDisplay | PlainDisplay], lose: Lose, make_trial: MakeTrial, make_row: MakeRow
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


@pytest.mark.parametrize("make", [io.StringIO, Terminal], ids=["log", "terminal"])
@pytest.mark.parametrize(("timeout_s", "ended", "notices"), [(None, 0, 1), (None, 1, 0), (60.0, 0, 0)])
def test_evaluation_without_an_end_has_one_notice(
    make: type[io.StringIO], timeout_s: float | None, ended: int, notices: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = iter(range(100))
    with EvaluationProgress(make(), Path("results/never"), timeout_s, lambda: next(seconds)) as progress:
        for _ in range(20):  # envs are made
            next(seconds)
        for _ in range(9):
            progress.report(ended, 1_000)
        assert capsys.readouterr() == ("", "")
        for _ in range(9):
            progress.report(ended, 2_000)
    said = capsys.readouterr()
    assert (said.out, said.err.count("results/never  no episode has ended in 2,000 env steps;")) == ("", notices)
    assert len(said.err.splitlines()) == notices


def test_quartiles_tell_two_kinds_of_episodes_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    played = PlayedEpisodes(np.array([20.0, 15.0, 15.0, 21.0, 15.0]), np.full(5, 30), 5, 150, 0.1)
    evaluation = Evaluation(Path("run/checkpoint_000001"), "PPO", "x:Y", 1, False, {}, played, (15.0, 19.4))
    print_evaluation(evaluation, None, as_json=False)
    _, _, mean, spread, _ = capsys.readouterr().out.splitlines()
    assert mean == "return    mean 17.20 (95 % interval 15.00 to 19.40)"
    assert spread == "          min 15.00, quartiles 15.00, 15.00 and 20.00, max 21.00, deviation 2.71"


def test_a_single_episode_has_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    played = PlayedEpisodes(np.array([-8.12]), np.array([30]), 1, 30, 0.1)
    evaluation = Evaluation(Path("run/checkpoint_000001"), "PPO", "x:Y", 1, False, {}, played, None)
    print_evaluation(evaluation, None, as_json=False)
    text = capsys.readouterr().out
    assert "return    -8.12 (one episode has no interval and no deviation)" in text.splitlines()
    assert "length    mean 30.0" in text
    print_evaluation(evaluation, None, as_json=True)
    figures = json.loads(capsys.readouterr().out)
    assert (figures["return_mean"], figures["return_std"], figures["return_interval_95"]) == (-8.12, None, None)

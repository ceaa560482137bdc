"""The summary says how a run ended, why, what is kept, and what to type next."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rlexp.runs.record import RecordedError, RunRecord, Status, TrialRecord
from rlexp.terminal.summary import summary_lines

RUN = Path("results/cartpole")


def record(*trials: TrialRecord, status: Status = Status.TERMINATED) -> RunRecord:
    return RunRecord("cartpole", [], {}, None, "host", 2, "now", status=status, trials=list(trials))


def trial(index: int, **known: object) -> TrialRecord:
    name = f"{index:05d}-DQN-x"
    facts = {"status": Status.TERMINATED, "iterations": 12, "reason": "timesteps_total reached 6,000", **known}
    return TrialRecord(name, name, index, {}, **facts)  # type: ignore[arg-type]


def test_the_summary_says_how_it_ended_and_what_to_type_next(finished_run: RunRecord) -> None:
    assert summary_lines(finished_run, RUN) == [
        "results/cartpole: RUNNING",
        "      status      iter  env steps     time  reward   best  trial",
        "best  TERMINATED    12     12,000  0:01:00   470.0  475.5  00000-APEX-x",
        "      ERROR          0          0  0:00:00       -      -  00001-APEX-x",
        "00000-APEX-x finished: episode_reward_mean 475.5 reached 475",
        "00001-APEX-x failed: Boom: no [2J (traceback: results/cartpole/e.txt)",
        "best checkpoint: results/cartpole/a/b",
        "",
        "next: correct what failed, then: rlexp resume results/cartpole",
        "      rlexp evaluate results/cartpole",
        "      rlexp compare results/cartpole",
        "      rlexp tensorboard results/cartpole",
    ]


def test_the_summary_fits_the_columns_of_a_terminal() -> None:
    trials = [
        trial(number, reason="episode_reward_mean 475.5 reached 475 and then some more that is long to read here")
        for number in range(2)
    ]
    for number, each in enumerate(trials):
        each.directory = f"0000{number}-DQN-CartPole-v1-train_batch_size=32,lr=0.001,n_step={number}"
    wide, narrow = summary_lines(record(*trials), RUN), summary_lines(record(*trials), RUN, columns=80)
    assert max(map(len, wide)) > 80
    assert max(len(line) for text in narrow for line in text.splitlines()) <= 80
    assert [line[-8:] for line in narrow if line.startswith("TERM")] == ["n_step=0", "n_step=1"]


def test_what_to_type_next_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert summary_lines(record(), tmp_path / "my runs" / "a")[-1] == "next: rlexp tensorboard 'my runs/a'"


def test_the_best_trial_of_each_environment_is_marked() -> None:
    rewards = [("x", 0.8727), ("x", 0.8841), ("y", -20.5), ("y", -20.98), ("z", 1.0)]
    trials = [trial(index, env=env, best_episode_reward_mean=best) for index, (env, best) in enumerate(rewards)]
    lines = summary_lines(record(*trials), RUN)
    assert [line[-11:] for line in lines if line.startswith("best  T")] == ["00001-DQN-x", "00002-DQN-x"]
    assert "0.8727" in lines[2]
    assert "0.8841" in lines[3]


def test_trials_that_ended_alike_share_a_line_and_many_lines_are_counted() -> None:
    lines = summary_lines(record(*map(trial, range(40))), RUN)
    assert "00000-DQN-x and 39 more finished: timesteps_total reached 6,000" in lines
    lines = summary_lines(record(*(trial(index, reason=f"reward {index}") for index in range(40))), RUN)
    assert sum("finished: reward" in line for line in lines) == 20
    assert "… and 20 more, in run.json" in lines


def test_a_policy_that_was_not_saved_is_said_to_be_lost() -> None:
    lines = summary_lines(record(trial(0), trial(1, best_checkpoint="00001-DQN-x/checkpoint_000012")), RUN)
    assert "the trained policy was not saved: checkpoint_at_end is false" in lines
    assert "to save it the next time: -o checkpoint_at_end=true" in lines
    saved = summary_lines(record(trial(1, best_checkpoint="00001-DQN-x/checkpoint_000012")), RUN)
    assert not [line for line in saved if "not saved" in line]
    assert "best checkpoint: results/cartpole/00001-DQN-x/checkpoint_000012" in saved


def test_a_stopped_trial_says_from_where_it_is_resumed(tmp_path: Path) -> None:
    for checkpoint in ("00000-DQN-x/checkpoint_000010", "00000-DQN-x/checkpoint_000008"):
        (tmp_path / checkpoint).mkdir(parents=True)
    stopped = [trial(index, status=Status.STOPPED, reason=None) for index in range(3)]
    stopped[2].iterations = 0
    lines = summary_lines(record(*stopped, status=Status.STOPPED), tmp_path)
    assert "00000-DQN-x stopped: resume continues from checkpoint_000010" in lines
    assert "00001-DQN-x stopped: iteration 12, no checkpoint: resume starts it from the beginning" in lines
    assert "00002-DQN-x stopped: it had no result yet" in lines
    assert f"next: rlexp resume {tmp_path}" in lines


def test_an_error_of_many_lines_and_control_characters_stays_one_line() -> None:
    failed = trial(0, status=Status.ERROR, error=RecordedError("ValueError: \x1b[31mbad\nsecond", None))
    (line,) = [line for line in summary_lines(record(failed), RUN) if "ValueError" in line]
    assert re.fullmatch(r"failed: ValueError:  \[31mbad", line)

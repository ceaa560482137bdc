"""What ``rlexp join`` prints of an actor."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from rlexp.board.actor.actor import ActorFigures
from rlexp.terminal.board import ActorDisplay, line_of

FIGURES = ActorFigures(
    seat=3,
    num_env_steps=41_000,
    num_fragments=80,
    num_sent_again=0,
    num_bytes=1_600_000,
    num_dropped=0,
    num_waiting=5,
    window=32,
    weights_version=8812,
    wait_share=0.0,
    seconds=1.0,
    is_connected=True,
    mean_return=212.0,
)
LINE = "41,000 steps/s · sent 80/s 1.6 MB/s · window 5/32 · waited 0 % · weights 8,812 · ε 0.012 · return 212.0"


def test_line_has_rates_since_the_last_one() -> None:
    assert line_of(FIGURES, None, 1.0, 0.012, 212.0) == LINE
    twice = replace(FIGURES, num_env_steps=82_000, num_fragments=160, num_bytes=3_200_000)
    assert line_of(twice, FIGURES, 1.0, 0.012, 212.0) == LINE


def test_line_leaves_out_what_is_not_known_and_says_that_the_board_is_away() -> None:
    line = line_of(replace(FIGURES, is_connected=False), None, 1.0, None, None)
    assert line.endswith("weights 8,812 · board away")


def test_a_log_gets_a_line_each_ten_seconds_and_each_event() -> None:
    now_s, stream = [0.0], io.StringIO()
    display = ActorDisplay(as_json=False, quiet=False, stream=stream, clock=lambda: now_s[0])
    display.on_seat(3, 8, "a-1", "CartPole-v1")
    for now_s[0] in (1.0, 10.0, 11.0):
        display.on_figures(FIGURES, None)
    display.close()
    first, second = stream.getvalue().splitlines()
    assert first.endswith("took seat 3 of 8 in a-1, CartPole-v1")
    assert "seat 3/8 CartPole-v1 · 4,100 steps/s" in second


def test_json_has_all_figures(capsys: pytest.CaptureFixture[str]) -> None:
    now_s, stream = [0.0], io.StringIO()
    display = ActorDisplay(as_json=True, quiet=False, stream=stream, clock=lambda: now_s[0])
    display.note("waiting")
    now_s[0] = 11.0
    display.on_figures(FIGURES, 0.012)
    note, actor = map(json.loads, capsys.readouterr().out.splitlines())
    assert (note["event"], note["text"]) == ("note", "waiting")
    assert (actor["event"], actor["num_env_steps"], actor["epsilon"]) == ("actor", 41_000, 0.012)
    assert stream.getvalue() == ""


def test_seat_that_was_left_is_told_with_all_that_was_done_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    ActorDisplay(as_json=True, quiet=False, stream=stream).on_left(FIGURES, "a-1", "the task is over")
    left = json.loads(capsys.readouterr().out)
    assert (left["event"], left["task"], left["why"], left["num_fragments"]) == ("left", "a-1", "the task is over", 80)
    ActorDisplay(as_json=False, quiet=False, stream=stream).on_left(
        replace(FIGURES, num_dropped=2), "a-1", "it is over"
    )
    told = "left seat 3 of a-1: it is over · 41,000 steps in 80 fragments, 2 of them thrown away"
    assert told in stream.getvalue()


def test_quiet_prints_nothing() -> None:
    stream = io.StringIO()
    display = ActorDisplay(as_json=False, quiet=True, stream=stream, clock=lambda: 0.0)
    display.note("waiting")
    display.on_seat(3, 8, "a-1", "CartPole-v1")
    display.close()
    assert stream.getvalue() == ""

"""Numbers as people read them, lines that fit a terminal, and passwords masked, but not what only sounds like one."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlexp import text
from rlexp.text import columns_of, masked, masked_command, wrapped
from tests.lab.terminals import Terminal


def test_secret_keys_are_masked_at_any_depth() -> None:
    config = {"env_config": {"servers": [{"redisPassword": "x", "port": 1}]}, "API_KEY": "x", "token": None}
    assert masked(config) == {
        "env_config": {"servers": [{"redisPassword": "***", "port": 1}]},
        "API_KEY": "***",
        "token": None,
    }


@pytest.mark.parametrize("key", ["num_tokens", "tokenizer", "key", "keys", "secretary", "lr"])
def test_other_keys_are_not(key: str) -> None:
    assert masked({key: 1}) == {key: 1}


def test_passwords_in_urls_are_masked() -> None:
    assert masked(["redis://user:pw@host:1/0", "http://host:80/a@b"]) == [
        "redis://user:***@host:1/0",
        "http://host:80/a@b",
    ]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["-o", "config.password=x=y"], ["-o", "config.password=***"]),
        (["--token", "x", "file"], ["--token", "***", "file"]),
        (["--token=x", "file"], ["--token=***", "file"]),
        (["-o", "lr=0.1", "file"], ["-o", "lr=0.1", "file"]),
        (["secret", "file"], ["secret", "file"]),
    ],
)
def test_commands_are_masked(given: list[str], shown: list[str]) -> None:
    assert masked_command(given) == shown


TEXT = "file.yaml:3:8  unknown key lrr (agent DQN); did you mean lr? --num-samples"


def test_columns_are_those_of_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "33")
    assert columns_of(io.StringIO()) is None
    assert columns_of(Terminal()) == 33
    monkeypatch.setenv("COLUMNS", "wide")
    assert columns_of(Terminal()) == 80


def test_no_line_is_too_long_and_no_word_is_cut() -> None:
    lines = wrapped(TEXT, 30, " " * 7, 7).splitlines()
    assert max(map(len, lines)) <= 30
    assert len(lines[0]) <= 23
    assert all(line.startswith(" " * 7) for line in lines[1:])
    assert " ".join(lines).split() == TEXT.split()


def test_without_a_width_a_text_stays_as_it_is() -> None:
    assert wrapped(TEXT * 9, None, "  ", 7) == TEXT * 9


def test_a_word_longer_than_a_line_stays_whole() -> None:
    path = "/results/" + "x" * 60
    assert wrapped(f"see {path} now", 40, "  ").splitlines() == ["see", f"  {path}", "  now"]


def test_ends_of_lines_and_empty_lines_stay() -> None:
    assert wrapped("a\n\nb", 40, "  ", 3) == "a\n\n  b"


@given(st.lists(st.floats(-1e9, 1e9)), st.integers(1, 30))
def test_a_sparkline_has_one_block_a_stretch_and_spans_low_to_high(values: list[float], width: int) -> None:
    line = text.sparkline(values, width)
    assert len(line) == min(len(values), width)
    if len(values) <= width and len(set(values)) > 1:
        assert line[values.index(min(values))] == "▁"
        assert line[values.index(max(values))] == "█"


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.count(1234567.8), "1,234,568"),
        (text.count(None), "-"),
        (text.size(999), "999 B"),
        (text.size(1_234_567), "1.2 MB"),
        (text.size(None), "-"),
        (text.count(True), "-"),
        (text.percent(0.999), "99 %"),
        (text.percent(0.29), "29 %"),
        (text.percent(1.0), "100 %"),
        (text.duration(59.9), "0:00:59"),
        (text.duration(90_061), "1d 1:01:01"),
        (text.duration(float("inf")), "-"),
        (text.bar(0.5, 4), "██░░"),
        (text.exact(2_000_000.0), "2,000,000"),
        (text.exact(0.95), "0.95"),
        (text.score(486.74), "486.7"),
        (text.score(0.8727), "0.8727"),
        (text.score(-20.98), "-20.98"),
        (text.score(9.0), "9.0"),
        (text.score(12_345.6), "12,346"),
        (text.score(0), "0.0"),
        (text.score(1e-7), "1e-07"),
        (text.score(10**400), "-"),
        (text.levels([0.0, 0.5, 1.0, 2.0]), "▁▅██"),
        (text.one_line("a\x1b[2Jb\nc"), "a [2Jb"),
        (text.one_line(""), ""),
        (text.middle_cut("abcdefghij", 7), "ab…ghij"),
    ],
)
def test_figures_read_at_a_glance(shown: str, expected: str) -> None:
    assert shown == expected


@pytest.mark.parametrize(("largest", "digits"), [(12_000, 0), (500, 1), (47, 2), (5, 3), (0.3, 4), (1e-12, 6), (0, 1)])
def test_small_scores_get_more_digits(largest: float, digits: int) -> None:
    assert text.digits_for(largest) == digits


@pytest.mark.parametrize(
    ("names", "width", "cut"),
    [
        (["a", "b"], 8, ["a", "b"]),
        (
            ["lr=0.001, target_network_update_freq=500", "lr=0.0005, target_network_update_freq=1000"],
            18,
            ["lr=0.001, …500", "lr=0.0005, …1000"],
        ),
        (["cartpole-long-name-version-one", "cartpole-long-name-version-two"], 16, ["…version-one", "…version-two"]),
        (["grid lr=0.1, hiddens=[64, 64]", "grid lr=0.1, hiddens=[64]"], 16, ["grid …[64, 64]", "grid …[64]"]),
        (
            ["lr", "config.noise.final_standard_deviation", "config.noise.initial_standard_deviation"],
            20,
            ["lr", "…noise.final_…", "…noise.initial_…"],
        ),
        (["a-single-long-name"], 9, ["a-s…-name"]),
        ([], 8, []),
    ],
)
def test_names_that_are_cut_stay_different(names: list[str], width: int, cut: list[str]) -> None:
    shown = text.distinct_cuts(names, width)
    assert max(map(len, shown), default=0) <= width
    assert shown == cut


@given(st.lists(st.text("ab-=, ", max_size=30), max_size=5), st.integers(1, 30))
def test_cut_names_never_exceed_their_room(names: list[str], width: int) -> None:
    assert all(len(name) <= width for name in text.distinct_cuts(names, width))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.00082104, "0.000821"),
        (0.99685, "0.9969"),
        (25_606, "25606"),
        (True, "true"),
        (None, "null"),
        ("Pong-v5", "Pong-v5"),
        ([[16, [8, 8], 4], 0.5], "[[16,[8,8],4],0.5]"),
        ({"a": 1.5}, '{"a": 1.5}'),
    ],
)
def test_values_of_keys_are_short(value: object, words: str) -> None:
    assert text.value_words(value) == words


def test_a_long_list_is_cut_and_counted() -> None:
    lines = [str(number) for number in range(5_000)]
    assert text.first_of(lines, ", in run.json") == [*lines[:20], "… and 4,980 more, in run.json"]
    assert text.first_of(lines[:20], "") == lines[:20]

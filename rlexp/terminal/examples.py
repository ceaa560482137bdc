"""The examples as a table, one of them in words, and what to type next."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from rlexp.config.examples import MEASURED, NOT_RECORDED, UNSEEN, Example
from rlexp.files import to_json
from rlexp.terminal.lines import BOLD, aligned, painted
from rlexp.text import CUT, MISSING, columns_of, wrapped

_NOT_SEEN: Final = "not seen"
_MOST: Final = {"score": 12, "time": 10}
"""Letters of these columns on a terminal."""
_SHORTEST: Final = 12
"""Letters of the column ``env`` on the narrowest terminal."""
_LABEL: Final = 9
_USUAL_WIDTH: Final = 80


def print_examples(examples: Sequence[Example], as_json: bool) -> None:
    """Print all of them to stdout: a table that fits the terminal, or one JSON object."""
    if as_json:
        print(to_json({"examples": [example_as_json(each) for each in examples]}))
        return
    width = columns_of(sys.stdout)
    rows = [("name", "agent", "env", "score", "time"), *(_row(each) for each in examples)]
    if width is not None:
        rows = _fitting(rows, width)
    header, *lines = aligned(rows)
    print(painted(header, BOLD, sys.stdout))
    print("\n".join(lines))
    if sys.stdout.isatty():
        print()
        for line in _notes(examples):
            print(wrapped(line, width))


def _notes(examples: Sequence[Example]) -> Iterator[str]:
    unseen = sum("score" not in each.facts for each in examples)
    yield "score: the mean return that was reached. time: until then, as recorded; the file names the machine."
    if unseen:
        yield f"{_NOT_SEEN}: nobody has seen {unseen} of them learn yet; the file says how far it was trained."
    yield "next: rlexp examples NAME   copies one here"


def _row(example: Example) -> tuple[str, ...]:
    more = len(example.envs) - 1
    env = f"{example.envs[0]} + {more}" if more > 0 else example.env
    if example.unseen is not None:
        return example.name, example.agent, env, _NOT_SEEN, MISSING
    return example.name, example.agent, env, _brief(example.facts.get("score")), _brief(example.facts.get("time"))


def _brief(fact: str | None) -> str:
    """Return a fact without its explanation, which is in brackets."""
    return MISSING if fact in (None, NOT_RECORDED) else str(fact).partition(" (")[0]


def _fitting(rows: Sequence[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Return the rows with cells cut so that a line fits; names are never cut, as they are typed."""
    cut = [(*row[:3], _cut(row[3], _MOST["score"]), _cut(row[4], _MOST["time"])) for row in rows]
    taken = sum(max(len(row[column]) for row in cut) + 2 for column in (0, 1, 3, 4))
    return [(*row[:2], _cut(row[2], max(width - taken, _SHORTEST)), *row[3:]) for row in cut]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip(" ,") + CUT


def example_as_json(example: Example) -> dict[str, Any]:
    """Return what is known of an example; facts that nobody has seen are null."""
    facts = {fact: example.facts.get(fact) for fact in MEASURED}
    return {
        "name": example.name,
        "task": example.task,
        "agents": example.agents,
        "envs": example.envs,
        "is_sweep": example.is_sweep,
        **facts,
        UNSEEN.replace(" ", "_"): example.unseen,
        "files": [path.name for path in example.files],
    }


def print_copied(example: Example, written: Sequence[Path], as_json: bool) -> None:
    """Print which files were written to stdout, what is known of the example, and the next commands."""
    if as_json:
        print(to_json({**example_as_json(example), "written": [str(path) for path in written]}))
        return
    print(f"wrote {' and '.join(map(str, written))}: {example.task}")
    for fact in (*MEASURED, UNSEEN):
        if fact in example.facts:
            label = f"{fact}:".ljust(_LABEL)
            width = columns_of(sys.stdout) or _USUAL_WIDTH
            print(wrapped(f"  {label} {example.facts[fact]}", width, indent=" " * (_LABEL + 3)))
    print_next([f"rlexp check {written[0]}", f"rlexp {'sweep' if example.is_sweep else 'run'} {written[0]}"])


def print_next(commands: Sequence[str]) -> None:
    """Print the commands that come next to stdout."""
    print()
    for number, command in enumerate(commands):
        print(f"{'      ' if number else 'next: '}{command}")


def print_begun(written: Sequence[Path], as_json: bool) -> None:
    """Print which files ``init`` has written to stdout, the experiment first, and the next commands."""
    if as_json:
        print(to_json({"written": [str(path) for path in written]}))
        return
    experiment, *others = written
    for path in written:
        print(f"wrote {path}")
    tests = [f"python -m pytest {path}" for path in others if path.name.startswith("test_")]
    print_next([*tests, f"rlexp check --env {experiment}", f"rlexp run {experiment}"])

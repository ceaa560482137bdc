"""The importance of the keys of a sweep: a table with the best values, and sentences on how it was computed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from rlexp.number_format import MISSING, bar, decimal, first_of, middle_cut, one_line, value_words
from rlexp.results.importance import METHOD, Importance, KeyImportance
from rlexp.results.sweep_results import SweepResults
from rlexp.terminal.lines import BOLD, aligned, painted

_BAR: Final = 20
_LONGEST: Final = 30
"""Letters of a key or of a value."""
_BY_CHANCE: Final = "may be chance"


def importance_lines(results: SweepResults, importance: Importance, columns: int) -> Iterator[str]:
    """Yield the importances as a table, then sentences broken at ``columns``; or why there are none."""
    if importance.problem is not None:
        yield from textwrap.wrap(importance.problem, columns - 1)
        return
    best = results.best
    rows = [(_cut(each.key), _value(best.point if best else {}, each.key), *_figures(each)) for each in importance.keys]
    yield painted("importance of the keys, and their best values", BOLD, sys.stdout)
    yield from first_of(list(aligned([("key", "best", "share", "", ""), *rows], (2,))), "; --json prints all")
    for note in importance.notes:
        yield from textwrap.wrap(note, columns - 1)


def importance_as_json(importance: Importance) -> dict[str, Any]:
    """Return the importances for a program."""
    return {
        "method": METHOD,
        "configurations": importance.configurations,
        "best": importance.best,
        "keys": [{"key": each.key, "share": each.share, "chance": each.chance} for each in importance.keys],
        "notes": list(importance.notes),
        "problem": importance.problem,
    }


def _figures(each: KeyImportance) -> tuple[str, str, str]:
    return f"{decimal(100 * each.share, 0)} %", bar(each.share, _BAR), "" if each.is_significant else _BY_CHANCE


def _value(point: Any, key: str) -> str:
    return _cut(value_words(point[key])) if key in point else MISSING


def _cut(text: str) -> str:
    return middle_cut(one_line(text), _LONGEST)

"""The importance of the keys of a sweep: a table with the best values, and sentences on how it was computed."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any, Final

from rlexp.run_results.importance import METHOD, Importance, KeyImportance
from rlexp.run_results.sweep_results import SweepResults
from rlexp.terminal.lines import BOLD, aligned, painted
from rlexp.text import MISSING, bar, decimal, distinct_cuts, first_of, middle_cut, one_line, value_words

_BAR: Final = 10
_SHORTEST: Final = 12
"""Letters that a key or a value has at least where it is cut."""
_BY_CHANCE: Final = "may be chance"


def importance_lines(results: SweepResults, importance: Importance, columns: int) -> Iterator[str]:
    """Yield the importances as a table, then sentences broken at ``columns``; or why there are none."""
    if importance.problem is not None:
        yield from textwrap.wrap(importance.problem, columns - 1)
        return
    best = results.best.point if results.best else {}
    figures = [_figures(each) for each in importance.keys]
    room = columns - 1 - sum(max(map(len, column)) + 2 for column in zip(*figures, strict=True))
    values = [value_words(best[each.key]) if each.key in best else MISSING for each in importance.keys]
    values = [middle_cut(one_line(value), max(room // 3, _SHORTEST)) for value in values]
    room_of_keys = max(room - max(map(len, values)) - 2, _SHORTEST)
    keys = distinct_cuts([one_line(each.key) for each in importance.keys], room_of_keys)
    rows = [(key, value, *cells) for key, value, cells in zip(keys, values, figures, strict=True)]
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
    share = f"{decimal(100 * each.share, 0)} %".rjust(len("share"))
    return share, bar(each.share, _BAR), "" if each.is_significant else _BY_CHANCE

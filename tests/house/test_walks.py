"""The straight walks of docs/architecture.md are those that the real thing goes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from tests.house.source_tree import PACKAGE, ROOT
from tests.house.walks import WALKS, Station, Trace, report, traced_walks

MOST_FILES = 9
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trace]:
    return traced_walks(tmp_path_factory.mktemp("walks"))


def rows_of_page() -> dict[str, Sequence[tuple[str, str]]]:
    """Return the files of each walk in the page's table; ``*`` behind one says that it is not traced."""
    section = PAGE.partition("## The straight walks")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {name: re.findall(r"`([^`]+)`(\*?)", files) for name, files in rows[1:]}


@pytest.mark.parametrize("name", WALKS)
def test_walk_is_short_and_straight(name: str) -> None:
    files = [station.file for station in WALKS[name]]
    assert len(files) == len(set(files)) <= MOST_FILES
    assert all((PACKAGE / file).is_file() for file in files)


@pytest.mark.parametrize("name", WALKS)
def test_files_of_a_walk_are_entered_in_its_order(name: str, traces: Mapping[str, Trace]) -> None:
    first = traces[name].first_entries(WALKS[name])
    assert None not in first.values(), first
    assert list(first.values()) == sorted(first.values(), key=lambda at: at or 0), first


def test_page_has_these_walks() -> None:
    page = {name: [(f"{path}.py", star) for path, star in files] for name, files in rows_of_page().items()}
    assert page == {
        name: [(station.file, "" if station.function else "*") for station in walk] for name, walk in WALKS.items()
    }


def test_report_has_a_line_for_each_file(traces: Mapping[str, Trace]) -> None:
    lines = list(report(traces))
    assert len(lines) == sum(len(walk) + 4 for walk in WALKS.values())


def test_stays_are_counted_by_thread_within_what_is_asked_for() -> None:
    entered = [(1, "a"), (1, "a"), (2, "b"), (1, "c"), (2, "b"), (1, "a"), (2, "c"), (1, "d")]
    trace = Trace([(thread, Station(file, f"{file}{at}")) for at, (thread, file) in enumerate(entered)])
    assert trace.stays(0, 6) == {"a": 2, "b": 1, "c": 2}
    assert trace.since(5).stays(0, 1) == {"a": 1, "c": 1}
    assert trace.first_entries([Station("c", "c6"), Station("c"), Station("a", "c6")]) == {
        Station("c", "c6"): 6,
        Station("a", "c6"): None,
    }

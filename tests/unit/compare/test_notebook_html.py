"""HTML for notebooks: tables whose texts are escaped, curves that stay small, results of runs."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np

from rlexp.api.runs import Run
from rlexp.compare.table import MOST_CURVES, NotebookCurve, html_curves, html_table, read_results
from tests.lab.run_folders import MadeTrial, make_run

EVIL = "<script>alert(1)</script>"


def curve(name: str, values: list[float]) -> NotebookCurve:
    return NotebookCurve(name, np.arange(len(values), dtype=float), np.array(values))


def elements(html: str, tag: str) -> list[ElementTree.Element]:
    """Return the elements with a name; fails where the HTML is not well-formed."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == tag]


def test_texts_of_tables_and_legends_are_no_html() -> None:
    html = html_table([EVIL], [[EVIL]]) + html_curves([curve(EVIL, [1.0, 2.0])])
    assert not elements(html, "script")
    assert elements(html, "td")[0].text == EVIL


def test_gaps_are_left_out_and_long_curves_have_few_points() -> None:
    html = html_curves([curve("a", [np.nan, 1.0, np.inf, *range(5000)])])
    (line,) = elements(html, "polyline")
    assert len(line.attrib["points"].split()) <= 300
    assert not {"nan", "inf"} & set(line.attrib["points"].replace(",", " ").split())


def test_no_picture_without_two_points() -> None:
    assert html_curves([curve("a", [1.0]), curve("b", [np.nan, np.nan])]) == ""


def test_more_curves_than_colours_are_counted() -> None:
    html = html_curves([curve(f"{number}", [0.0, 1.0]) for number in range(MOST_CURVES + 3)])
    assert len(elements(html, "polyline")) == MOST_CURVES
    assert "and 3 more" in html


def test_results_and_runs_have_a_table_and_curves(tmp_path: Path) -> None:
    path = make_run(tmp_path / "cart<pole", [MadeTrial([1.0, 2.0, 3.0], seed) for seed in (1, 2)])
    for html in (read_results([path])._repr_html_(), Run.at(path)._repr_html_()):
        assert len(elements(html, "polyline")) == 2
        assert len(elements(html, "tr")) == 3
        assert "2 trials, 6 rows" in html

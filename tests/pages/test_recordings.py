"""How a recording of a terminal becomes a picture: what its screen shows, and when the picture shows it."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.pages.recording import Frame, Screen, moving_svg, record


def test_screen_erases_lines_as_the_live_display_does() -> None:
    screen = Screen(height=3)
    screen.write("title\r\n\x1b[1mbold\x1b[0m\r\n")
    screen.write("\x1b[?25l\r\x1b[2K\x1b[1A\r\x1b[2Knew")
    assert screen.shown == ("title", "new", "")


def test_screen_shows_its_last_rows() -> None:
    screen = Screen(height=2)
    screen.write("a\r\nb\r\nc")
    assert screen.shown == ("b", "c")


def test_screen_refuses_codes_that_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"ESC\[5C"):
        Screen(height=2).write("\x1b[5C")


def test_record_has_each_picture_with_its_time(tmp_path: Path) -> None:
    program = "import os, time; print(*os.get_terminal_size()); time.sleep(0.2); print('zwei ε')"
    frames = record([sys.executable, "-c", program], str(tmp_path), {}, 70, 9)
    texts = ["\n".join(frame.rows).rstrip() for frame in frames]
    assert "70 9" in texts
    assert texts[-1] == "70 9\nzwei ε"
    first = next(frame for frame, text in zip(frames, texts, strict=True) if text == "70 9")
    assert frames[-1].at_s - first.at_s >= 0.1


def test_record_of_a_command_that_fails(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="ended with 3"):
        record([sys.executable, "-c", "raise SystemExit(3)"], str(tmp_path), {}, 70, 9)


def test_svg_is_well_formed_and_loads_nothing() -> None:
    svg = moving_svg([(Frame(0, ("\x1b[32mgo\x1b[0m",)), 1.0), (Frame(1, ("a & b", "c")), 3.0)], "title", 40)
    ET.fromstring(svg)
    assert not re.search(r"url\(\"?http", svg)
    assert "0% { visibility: hidden } 25.00% { visibility: visible } 100.00% { visibility: hidden }" in svg
    assert "#p0 { visibility: visible }" in svg  # without motion: the last but one

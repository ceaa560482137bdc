"""What is drawn again and again leaves nothing behind, whatever the window does meanwhile."""

from __future__ import annotations

import pytest
from rich.console import Console
from rich.text import Text

from rlexp.terminal.live import Canvas
from tests.terminals import Window


class RememberingWindow(Window):
    """Remembers what was written to it, as it was written."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return super().write(text)


def canvas_on(window: Window) -> tuple[Canvas, Console]:
    console = Console(file=window, force_terminal=True, width=window.width, height=24, highlight=False, _environ={})
    return Canvas(console), console


def resize(window: Window, console: Console, width: int) -> None:
    window.resize(width)
    console.width = width


@pytest.mark.parametrize("widths", [(80,), (160, 80), (160, 80, 40), (160, 50, 120, 30), (30, 160, 31)])
def test_a_narrower_window_keeps_no_rows_of_old_pictures(widths: tuple[int, ...]) -> None:
    window = Window(widths[0])
    canvas, console = canvas_on(window)
    print("a shell line above", file=window)
    canvas.open()
    for number, width in enumerate(widths):
        if width != window.width:
            resize(window, console, width)
        picture = [f"picture {number}".ljust(width), "x" * width, "short"]
        canvas.draw(Text("\n".join(picture)))
        assert window.shown == ["a shell line above", picture[0].rstrip(), picture[1], "short"]
    canvas.close()
    assert window.shown == ["a shell line above"]


def test_what_is_printed_above_stays_and_the_picture_comes_below_it() -> None:
    window = Window(40)
    canvas, _ = canvas_on(window)
    canvas.draw(Text("starting"))
    canvas.print_above(Text("a note before it was opened"))
    canvas.open()
    canvas.draw(Text("one\ntwo"))
    canvas.print_above(Text("a note"))
    assert window.shown == ["a note before it was opened", "a note", "one", "two"]
    canvas.close()
    assert window.shown == ["a note before it was opened", "a note"]


def test_what_the_terminal_echoes_wraps_no_line_of_the_picture() -> None:
    window = Window(20)
    canvas, _ = canvas_on(window)
    canvas.open()
    canvas.draw(Text("one\n" + "x" * 20))
    window.write("^C")
    canvas.draw(Text("after"))
    assert window.shown == ["after"]


def test_a_canvas_that_was_never_opened_keeps_the_cursor_and_erases_its_line() -> None:
    window = RememberingWindow(40)
    canvas, _ = canvas_on(window)
    canvas.draw(Text("checking  0:00:01"))
    assert window.shown == ["checking  0:00:01"]
    canvas.close()
    assert window.shown == [""]
    assert "\x1b[?25l" not in "".join(window.written)

"""The live display: a picture at the bottom of the terminal, below printed lines, redrawn with every tick.

It also handles changes of the window's size.
"""

from __future__ import annotations

import io
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any, Final, TextIO

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from rlexp.config.keys.trial import Trial
from rlexp.runs.directories import as_typed, derived_name
from rlexp.runs.record import RunRecord, Status
from rlexp.runs.rows import earlier_rewards
from rlexp.terminal.displays import STOPPING, QuietDisplay
from rlexp.terminal.panel import picture
from rlexp.terminal.summary import leaderboard
from rlexp.terminal.trial_view import OverallProgress, TrialView
from rlexp.text import duration, middle_cut, one_line

_ERASE_LINE = 2
"""ANSI's parameter for a whole line."""


class Canvas:
    """Owns the last lines of a terminal between its first drawing and ``close``; calls may come from any thread.

    Before ``open`` it is a single line with a visible cursor, so that a killed process leaves the terminal intact.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._lock = RLock()
        self._drawn: Text | None = None
        self._width = console.width

    def open(self) -> None:
        """Make room for pictures of several lines."""
        with self._lock:
            self._erase()
            self._live.start()

    def draw(self, text: Text) -> None:
        """Replace what was drawn."""
        with self._lock:
            self._erase()
            if not self._live.is_started:
                self._console.print(text, end="", soft_wrap=True)
            else:
                # The cursor waits on a line of its own, so that an echo, such as ^C, wraps no line of the picture.
                self._live.update(text + "\n", refresh=True)
            self._drawn, self._width = text, self._console.width

    def print_above(self, text: Text) -> None:
        """Print a line that stays."""
        with self._lock:
            self._erase()
            self._console.print(text)

    def close(self) -> None:
        """Erase what was drawn; a second call does nothing."""
        with self._lock:
            self._erase()
            self._live.stop()
            self._drawn = None

    def _erase(self) -> None:
        """Erase a single line; of a picture, what the library would not erase."""
        self._go_back_over_wrapped_lines()
        if self._drawn is not None and not self._live.is_started:
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, _ERASE_LINE)))
            self._drawn = None

    def _go_back_over_wrapped_lines(self) -> None:
        """Erase the lines into which a narrower window has wrapped one, so that the picture starts at its place.

        Terminals wrap a line that is too long; the library counts written lines.
        """
        width = self._console.width
        if self._drawn is None or width >= self._width:
            return
        added = sum(math.ceil(line.cell_len / width) - 1 for line in self._drawn.split("\n") if line.cell_len)
        for _ in range(added):
            self._console.control(
                Control(
                    ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, _ERASE_LINE), (ControlType.CURSOR_UP, 1)
                )
            )
        self._width = width


_NOTEBOOK_COLUMNS: Final = 100
_NOTEBOOK_LINES: Final = 30
_SEND_PERIOD_S: Final = 0.5
_LINES_KEPT: Final = 30
"""Newest lines above the picture of a notebook; the run's files have all."""
_PRE: Final = '<pre style="margin:0;line-height:1.3;white-space:pre">{code}</pre>'


class HtmlCanvas:
    """A Canvas for the display of a notebook: sends each picture, with the lines above it, as HTML and as text.

    A picture that comes sooner than half a second after another is left out; ``close`` sends the last one.
    """

    def __init__(
        self, send: Callable[[str, str], None], width: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._width, self._clock = send, width, clock
        self._lock = RLock()
        self._above: deque[Text] = deque(maxlen=_LINES_KEPT)
        self._next_s = -math.inf
        self._sent = ""

    def open(self) -> None:
        """Do nothing: there is room."""

    def draw(self, text: Text) -> None:
        with self._lock:
            if self._clock() >= self._next_s:
                self._show([*self._above, text])

    def print_above(self, text: Text) -> None:
        with self._lock:
            self._above.append(text)
            self._next_s = -math.inf

    def close(self) -> None:
        with self._lock:
            self._show([*self._above])

    def _show(self, lines: Sequence[Text]) -> None:
        console = Console(record=True, width=self._width, file=io.StringIO(), color_system="truecolor", highlight=False)
        for line in lines:
            console.print(line, soft_wrap=True)
        html = console.export_html(inline_styles=True, code_format=_PRE)
        if html != self._sent:
            self._sent, self._next_s = html, self._clock() + _SEND_PERIOD_S
            self._send(html, "\n".join(line.plain for line in lines))


_PERIOD_S: Final = 0.2


class LiveDisplay(QuietDisplay):
    """Draws on stderr's terminal.

    The runner's calls draw. While the command itself is busy, such as with Ray's start, a clock draws only the
    headline: another thread reads nothing else of the display.
    """

    def __init__(self, stdout: TextIO, console: Console, canvas: HtmlCanvas | None = None) -> None:
        """``console`` says how large pictures are; without a ``canvas`` they are drawn there."""
        super().__init__(stdout)
        self._console = console
        self._canvas: Canvas | HtmlCanvas = canvas or Canvas(console)
        self._clock = Clock(self._draw_headline)
        self._views: dict[str, TrialView] = {}
        self._overall = OverallProgress()
        self._began_s = time.monotonic()
        self._phase = ""

    def on_phase(self, trial: Trial | None, text: str) -> None:
        """Show the phase of the command or of a trial's process; the clock draws until the next tick."""
        if trial is not None:
            view = self._view(trial)
            view.status, view.phase = Status.RUNNING, one_line(text)
            self._phase = ""
            return
        self._phase = one_line(text)
        self._draw_headline()
        self._clock.start()

    def start(self, run_directory: Path, trials: Sequence[Trial]) -> None:
        """Draw the first picture; a trial that is resumed keeps the rewards that it had."""
        super().start(run_directory, trials)
        for trial in trials:
            self._view(trial).recall(earlier_rewards(run_directory / derived_name(trial.name)))
        self._canvas.open()

    def on_trial_start(self, trial: Trial) -> None:
        self._phase = ""
        self._view(trial).begin(time.monotonic())

    def on_result(self, trial: Trial, row: Mapping[str, Any]) -> None:
        self._view(trial).add(row)

    def on_note(self, trial: Trial | None, text: str) -> None:
        who = f"{trial.name}: " if trial else ""
        self._canvas.print_above(Text.assemble(who, (one_line(text), "yellow")))

    def on_trial_end(self, trial: Trial, status: Status, message: str | None) -> None:
        self._view(trial).status = status
        style = {Status.ERROR: "red", Status.PRUNED: "yellow"}.get(status, "green")
        said = f": {one_line(message)}" if message else ""
        self._canvas.print_above(Text.assemble(trial.name, " ", (status.value, style), said))

    def tick(self) -> None:
        """Draw the picture for the terminal's present size."""
        self._clock.stop()
        width, height = self._console.size
        # The last line is for the cursor: a picture as high as the terminal would scroll it with every tick.
        if self._standings is not None:
            drawn = leaderboard(self._standings, self._headline(width), width, height - 1)
        else:
            drawn = self._picture(width, height - 1)
        self._canvas.draw(drawn)

    def finish(self, run: RunRecord) -> None:
        self._close()
        super().finish(run)

    def __exit__(self, *error: object) -> None:
        """Restore the terminal: the cursor and the lines of the picture."""
        self._close()

    def _close(self) -> None:
        self._clock.stop()
        self._canvas.close()

    def _view(self, trial: Trial) -> TrialView:
        return self._views.setdefault(trial.name, TrialView(trial))

    def _picture(self, width: int, height: int) -> Text:
        views, now_s = list(self._views.values()), time.monotonic()
        overall = self._overall.of(views, now_s) if len(views) > 1 else None
        return picture(views, self._headline(width), width, height, now_s, overall)

    def _draw_headline(self) -> None:
        width, _ = self._console.size
        headline = Text(self._headline(width), style="bold")
        headline.truncate(width, overflow="ellipsis")
        self._canvas.draw(headline)

    def _headline(self, width: int) -> str:
        """Return the run's directory, its time so far, and the present activity."""
        clock = duration(time.monotonic() - self._began_s)
        if self._stop_requested:
            return STOPPING
        facts = f"{clock}  {self._phase}".rstrip()
        if self._run_directory == Path():
            return facts
        room = max(width - len(facts) - 2, 1)
        return f"{middle_cut(str(as_typed(self._run_directory)), room)}  {facts}"


def notebook_display(stdout: TextIO, send: Callable[[str, str], None]) -> LiveDisplay:
    """Return a live display whose pictures are sent, as HTML and as text."""
    console = Console(file=io.StringIO(), width=_NOTEBOOK_COLUMNS, height=_NOTEBOOK_LINES)
    return LiveDisplay(stdout, console, HtmlCanvas(send, _NOTEBOOK_COLUMNS))


class Clock:
    """Owns a thread between ``start`` and ``stop``; ``draw`` is called from that thread."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw = draw
        self._stopped = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Begin to draw; idempotent."""
        if self._thread is None:
            self._stopped = Event()
            self._thread = Thread(target=self._run, args=(self._stopped,), name="display-clock", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End after the drawing in progress; idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopped.set()
            thread.join()

    def _run(self, stopped: Event) -> None:
        while not stopped.wait(_PERIOD_S):
            self._draw()

"""What ``rlexp join`` prints: how an actor does, as one line that is renewed, or as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from rlexp.number_format import count, percent, score, short, size
from rlexp.terminal.lines import visible

if TYPE_CHECKING:
    from rlexp.joined_actors.joined_actor import ActorFigures

_CLEAR_LINE: Final = "\r\x1b[K"
_ON_TERMINALS_S: Final = 1.0
_IN_LOGS_S: Final = 10.0


class ActorDisplay:
    """Prints what one actor does; owned by its main thread."""

    def __init__(self, as_json: bool, quiet: bool, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """``as_json``: to stdout; else to ``stream``, which has nothing but errors where ``quiet``."""
        self._as_json, self._quiet, self._stream, self._clock = as_json, quiet, stream, clock
        self._period_s = _ON_TERMINALS_S if stream.isatty() and not as_json else _IN_LOGS_S
        self._is_line_open = False
        self._seat = ""
        self._shown_s = clock()
        self._before: ActorFigures | None = None
        self._last_return: float | None = None

    def note(self, text: str) -> None:
        """Print an event."""
        if self._as_json:
            self._print_json("note", text=text)
        elif not self._quiet:
            self._close_line()
            print(f"{datetime.now():%H:%M:%S} {visible(text)}", file=self._stream, flush=True)

    def on_seat(self, seat: int, num_seats: int, task: str, env: str) -> None:
        """Print that a seat was taken."""
        self._seat, self._before, self._shown_s = f"seat {seat}/{num_seats} {env}", None, self._clock()
        self.note(f"took seat {seat} of {num_seats} in {task}, {env}")

    def on_figures(self, figures: ActorFigures, epsilon: float | None) -> None:
        """Print how the actor does, where the last time is long enough ago; ``epsilon``: None where it changes."""
        if figures.mean_return is not None:
            self._last_return = figures.mean_return
        elapsed_s = self._clock() - self._shown_s
        if elapsed_s < self._period_s:
            return
        self._shown_s += elapsed_s
        before, self._before = self._before, figures
        if self._as_json:
            self._print_json("actor", **asdict(figures), epsilon=epsilon)
        elif not self._quiet:
            line = f"{self._seat} · {line_of(figures, before, elapsed_s, epsilon, self._last_return)}"
            self._print_line(line)

    def close(self) -> None:
        """Leave the cursor on a line of its own."""
        self._close_line()

    def _print_line(self, line: str) -> None:
        if not self._stream.isatty():
            print(f"{datetime.now():%H:%M:%S} {visible(line)}", file=self._stream, flush=True)
            return
        self._is_line_open = True
        self._stream.write(f"{_CLEAR_LINE}{visible(line)}")
        self._stream.flush()

    def _close_line(self) -> None:
        if self._is_line_open:
            self._is_line_open = False
            self._stream.write("\n")
            self._stream.flush()

    def _print_json(self, event: str, **values: Any) -> None:
        print(json.dumps({"event": event, "time": time.time(), **values}), file=sys.stdout, flush=True)


def line_of(
    figures: ActorFigures,
    before: ActorFigures | None,
    elapsed_s: float,
    epsilon: float | None,
    mean_return: float | None,
) -> str:
    """Return an actor's figures as a line; rates are those of the last ``elapsed_s`` seconds, since ``before``."""
    steps, fragments, sent = (
        (getattr(figures, name) - (0 if before is None else getattr(before, name))) / max(elapsed_s, 1e-9)
        for name in ("num_env_steps", "num_fragments", "num_bytes")
    )
    parts = [
        f"{count(steps)} steps/s",
        f"sent {count(fragments)}/s {size(sent)}/s",
        f"window {figures.num_waiting}/{figures.window}",
        f"waited {percent(figures.wait_share)}",
        f"weights {count(figures.weights_version)}",
    ]
    if epsilon is not None:
        parts.append(f"ε {short(epsilon)}")
    if mean_return is not None:
        parts.append(f"return {score(mean_return)}")
    if not figures.is_connected:
        parts.append("board away")
    return " · ".join(parts)

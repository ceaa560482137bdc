"""What ``rlexp join`` prints: how an actor does, as one line that is renewed, or as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TextIO

from rlexp.terminal.status_line import StatusLine
from rlexp.text import count, percent, score, short, size

if TYPE_CHECKING:
    from rlexp.board.actor.actor import ActorFigures

_JSON_PERIOD_S: Final = 10.0


class ActorDisplay:
    """Prints what one actor does; owned by its main thread."""

    def __init__(self, as_json: bool, quiet: bool, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """``as_json``: to stdout; else to ``stream``, which has nothing but errors where ``quiet``."""
        self._as_json, self._quiet, self._clock = as_json, quiet, clock
        self._line = StatusLine(stream)
        self._period_s = _JSON_PERIOD_S if as_json else self._line.period_s
        self._seat = ""
        self._shown_s = clock()
        self._before: ActorFigures | None = None
        self._last_return: float | None = None

    def note(self, text: str) -> None:
        """Print an event."""
        if self._as_json:
            self._print_json("note", text=text)
        elif not self._quiet:
            self._line.print_above(text)

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
            self._line.show(line)

    def on_left(self, figures: ActorFigures, task: str, why: str) -> None:
        """Print that the seat was left, with all that was done in it."""
        if self._as_json:
            self._print_json("left", task=task, why=why, **asdict(figures))
            return
        sent = f"{count(figures.num_env_steps)} steps in {count(figures.num_fragments)} fragments"
        dropped = f", {count(figures.num_dropped)} of them thrown away" if figures.num_dropped else ""
        self.note(f"left seat {figures.seat} of {task}: {why} · {sent}{dropped}")

    def close(self) -> None:
        """Leave the cursor on a line of its own."""
        self._line.close()

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

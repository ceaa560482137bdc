"""What is seen of a task that is trained elsewhere: its state, its result rows, and episodes with its weights.

A TaskWatch looks at the board and puts the rows in order; TaskNotes say what has changed between two looks. The
BoardEvaluator of an EvaluationThread plays episodes with the newest weights. Loads no Ray, and torch only if the
network needs it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from rlexp.agents.evaluation import MAX_STEPS, Evaluator, evaluation_figures, evaluation_seed
from rlexp.agents.registry import policies_of
from rlexp.agents.workers import FILTERS, ObservationFilters
from rlexp.board.actor.outbox import WeightsFeed
from rlexp.board.messages.basics import BoardError, BoardLostError, Task, UnreadableError
from rlexp.board.messages.payloads import Newer
from rlexp.board.servers.board import Board, TaskStatus, TaskSummary
from rlexp.board.trainer.link import MOST_AT_ONCE
from rlexp.config.keys.experiment import Experiment
from rlexp.config.keys.user_code import UserModules
from rlexp.envs.make import spaces_of
from rlexp.envs.registry import env_config_of
from rlexp.errors import NotFiniteError, RlexpError, TrialError
from rlexp.files import parse_json
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, ShouldStop
from rlexp.rollout.filters import Moments
from rlexp.runs.rows import is_row
from rlexp.sample_batch import Array

PATIENCE_S: Final = 60.0
"""Seconds for which the trainer of a task that the board lost may announce it again; then it is submitted again."""
QUEUED_S: Final = 5.0
"""Seconds after which the display says that no trainer has taken a task."""
MOST_PAUSE_S: Final = 600.0
"""Most seconds between two resubmissions of a lost task; they begin with a second, and double."""
TIMEOUT_S: Final = 600.0
"""Most seconds of an evaluation, as an episode may never end."""
PERIOD_S: Final = 60.0
"""Least seconds between the starts of two evaluations."""
STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True)
class TaskNews:
    """The news since the last look."""

    summary: TaskSummary | None
    """None: the board has lost the task, or its state cannot be read."""
    rows: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()


class TaskWatch:
    """Follows one task; used by one thread."""

    def __init__(self, board: Board, task: Task, last_row: dict[str, Any] | None, clock: Callable[[], float]) -> None:
        """Begin after ``last_row``, the newest recorded one, if the board still has it."""
        self._board, self._task, self._clock = board, task, clock
        self._last_row = last_row
        self._next, self._last_text = 0, ""
        self._recent: deque[str] = deque(maxlen=2 * MOST_AT_ONCE)
        self._has_begun = False
        self._was_queued = True
        self._lost_s: float | None = None
        self._unreadable_s: float | None = None
        self._may_submit_s = -math.inf
        self._pause_s = 1.0

    def look(self) -> TaskNews:
        """Return the news; raises errors of the board."""
        summary = next((each for each in self._board.tasks() if each.id == self._task.id), None)
        if summary is None:
            return TaskNews(None, notes=self._wait_for_state() if self._is_there() else self._submit_again())
        self._lost_s = self._unreadable_s = None
        self._was_queued = summary.status is TaskStatus.QUEUED
        texts, notes = self._new_texts()
        texts = self._not_repeated(texts)
        rows = [row for text in texts if (row := _row_of(text)) is not None]
        if len(rows) < len(texts):
            notes = (*notes, f"left out {len(texts) - len(rows)} results that are none")
        notes = (*notes, *self._board.unreadable.drain_events())
        return TaskNews(summary, tuple(self._not_recorded(rows)), notes)

    def _is_there(self) -> bool:
        """Return whether the board has the task, although it does not list it."""
        try:
            return self._board.describe(self._task.id) is not None
        except UnreadableError:
            return True

    def _wait_for_state(self) -> tuple[str, ...]:
        """Wait for a task that the board has but does not list; raises BoardError after PATIENCE_S."""
        now, first = self._clock(), self._unreadable_s is None
        self._unreadable_s = now if self._unreadable_s is None else self._unreadable_s
        if now - self._unreadable_s > PATIENCE_S:
            hint = "install the same version of rlexp at all ends, or ask whoever runs the board; --attach comes back"
            raise BoardError(f"the state of task {self._task.id} on the board cannot be read", hint)
        text = f"the board has the task, but not what can be read of its state; waiting up to {PATIENCE_S:.0f} s for it"
        return (text,) if first else ()

    def _submit_again(self) -> tuple[str, ...]:
        """Submit a lost task again: at once if no trainer had it, else after PATIENCE_S.

        The pause grows each time that the board loses the task.
        """
        now = self._clock()
        first = self._lost_s is None
        self._lost_s = now if self._lost_s is None else self._lost_s
        if self._was_queued or now - self._lost_s > PATIENCE_S:
            if now < self._may_submit_s:
                return ()
            put(self._board, self._task)
            self._lost_s, self._was_queued = None, True
            self._may_submit_s = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, MOST_PAUSE_S)
            return ("the board had lost the task; it was submitted again",)
        waiting = f"the board has lost the task; waiting up to {PATIENCE_S:.0f} s for its trainer to announce it again"
        return (waiting,) if first else ()

    def _new_texts(self) -> tuple[list[str], tuple[str, ...]]:
        """Return the rows after the last one, and what happened if the board has lost that one."""
        overlap = max(self._next - 1, 0)
        numbered = self._board.rows(self._task.id, overlap)
        if self._next and numbered and numbered[0] == (overlap, self._last_text):
            numbered = numbered[1:]
        elif self._next and (not numbered or numbered[0][0] <= overlap):  # The board lost its data, so these are new.
            self._next = 0
            numbered = self._board.rows(self._task.id, 0)
        if not numbered:
            return [], ()
        missed = numbered[0][0] - self._next
        self._next, self._last_text = numbered[-1][0] + 1, numbered[-1][1]
        notes = (f"{missed:,} results are not on the board any more",) if missed > 0 else ()
        return [text for _, text in numbered], notes

    def _not_repeated(self, texts: list[str]) -> list[str]:
        """Return the rows without repeated ones, as a trainer sends rows again if an answer is lost."""
        new = []
        for text in texts:
            if text not in self._recent:
                new.append(text)
                self._recent.append(text)
        return new

    def _not_recorded(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows after the recorded one, with the first rows; all rows if it is not among them."""
        if self._has_begun or not rows:
            return rows
        self._has_begun = True
        last = self._last_row  # it may have evaluations added
        names = ("training_iteration", "timesteps_total", "timestamp")
        same = (last is not None and all(row.get(name) == last.get(name) for name in names) for row in rows)
        known = [index for index, is_same in enumerate(same) if is_same]
        return rows[known[-1] + 1 :] if known else rows


def put(board: Board, task: Task) -> None:
    """Submit a task; if an earlier answer was lost, the board may have it already."""
    try:
        board.submit(task)
    except BoardLostError:
        raise
    except BoardError:
        there = board.describe(task.id)
        if there is None or there.file != task.file:
            raise


def _row_of(text: str) -> dict[str, Any] | None:
    """Return the row in a trainer's text; None if the text is not a row."""
    try:
        row = parse_json(text)
        json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair raises, as no file can hold it
    except ValueError:
        return None
    return row if isinstance(row, dict) and is_row(row) else None


class TaskNotes:
    """Compares each line of the list of tasks with the previous one; owned by one submission."""

    def __init__(self, board: str) -> None:
        """Initialise; ``board`` is the address for a trainer to join, without its password."""
        self._board = board
        self._before: TaskSummary | None = None
        self._waits_for_trainer = False

    def of(self, now: TaskSummary) -> list[str]:
        trainer = None if self._before is None else self._before.trainer
        self._before = now
        if now.status.is_over:
            return []
        if now.trainer is not None:
            self._waits_for_trainer = False
            return [] if now.trainer == trainer else [f"trainer {now.trainer} has taken it"]
        notes = [] if trainer is None else [f"trainer {trainer} is gone"]
        is_queued = now.status is TaskStatus.QUEUED
        if not self._waits_for_trainer and not (is_queued and now.age_s < QUEUED_S):
            self._waits_for_trainer = True
            which = "no trainer has taken it yet; start one" if is_queued else "to go on, start one"
            notes.append(f"{which} with: rlexp join {self._board} --as trainer")
        return notes


class BoardEvaluator:
    """Owns the policy of one experiment, which plays with given weights; used by one thread."""

    def __init__(self, experiment: Experiment, modules: UserModules) -> None:
        """Make the env once, to read its spaces; raises EnvError if that fails."""
        config = self._config = experiment.config
        self._env_config = env_config_of(experiment.env, config, modules)
        self._policies = policies_of(experiment)(config, *spaces_of(self._env_config), modules)
        self._policy = self._policies.make_policy()

    def play(self, newer: Newer, num_episodes: int, should_stop: ShouldStop) -> PlayedEpisodes:
        """Return whole episodes under ``evaluation_config``; fewer if ``should_stop`` or TIMEOUT_S end them.

        Raises TrialError if the policy cannot act with these weights, and errors of the env.
        """
        limits = EvaluationLimits(MAX_STEPS, TIMEOUT_S, should_stop)
        seed = evaluation_seed(self._config.seed or 0, newer.version)
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                self._policy.set_weights(newer.weights)
                return self._evaluator(newer.moments).play(num_episodes, seed, limits)
        except (KeyError, ValueError, RuntimeError, NotFiniteError) as error:
            raise TrialError(f"weights {newer.version} cannot be evaluated: {error}") from error

    def _evaluator(self, moments: Moments | None) -> Evaluator:
        """Return the evaluator; it standardises observations by ``moments``, if the experiment does."""
        arrays: dict[str, dict[str, Array]] = {}
        if moments is not None:
            each = {"count": np.array(moments.count), "mean": moments.mean, "squares": moments.squares}
            arrays = {FILTERS: {name: array[np.newaxis] for name, array in each.items()}}  # of one filter
        filters = ObservationFilters(self._config, self._policies.observation_space, arrays, num_players=1)
        return Evaluator(self._env_config, self._policies, self._policy, filters)


class EvaluationThread:
    """Owns a thread from its beginning until ``stop``; evaluates the newest version that was asked for."""

    def __init__(
        self,
        player: BoardEvaluator,
        feed: WeightsFeed,
        num_episodes: int,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at once; used by one other thread."""
        self._player, self._feed, self._num_episodes = player, feed, num_episodes
        self._period_s, self._clock = period_s, clock
        self._changed = threading.Condition()
        self._wanted = -1
        self._evaluated = -1
        self._is_last = False
        self._stopping = threading.Event()
        self._results: list[tuple[int, dict[str, Any]]] = []
        self._notes: list[str] = []
        self._thread = threading.Thread(target=self._run, name="evaluations", daemon=True)
        self._thread.start()

    def want(self, version: int, *, is_last: bool = False) -> None:
        """Evaluate ``version`` after the previous evaluation is done and its period is over.

        The last one does not wait for the period, and is left out if the previous one was of ``version``.
        """
        with self._changed:
            self._wanted, self._is_last = version, is_last
            self._changed.notify_all()

    def take(self) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
        """Return the evaluations since the last call, as under ``evaluation`` in a row by version, and the problems."""
        with self._changed:
            results, self._results = self._results, []
            notes, self._notes = self._notes, []
            return results, notes

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End between two steps of an evaluation; idempotent."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        due_s = self._clock()
        while (newer := self._next(due_s)) is not None:
            due_s = self._clock() + self._period_s
            try:
                self._evaluate(newer)
            except Exception as error:  # an error of a user's env does not end training
                reason = error.message if isinstance(error, RlexpError) else f"{type(error).__name__}: {error}"
                self._note(f"no evaluation: {reason}")

    def _next(self, due_s: float) -> Newer | None:
        """Wait for weights to evaluate and return them; None: there will be none."""
        while True:
            with self._changed:
                left_s = None if self._wanted == self._evaluated else max(due_s - self._clock(), 0.0)
                self._changed.wait_for(lambda: self._is_ready(due_s), left_s)
                if self._stopping.is_set() or (self._is_last and self._wanted == self._evaluated):
                    return None
                if not self._is_ready(due_s):
                    continue
                self._evaluated = self._wanted
            try:
                self._feed.fetch(self._evaluated)
            except RlexpError:
                continue  # The board is away, which the watching thread reports; the next version is tried.
            if self._feed.version == self._evaluated:
                return self._feed.newest(None)

    def _is_ready(self, due_s: float) -> bool:
        is_due = self._wanted != self._evaluated and self._clock() >= due_s
        return self._stopping.is_set() or self._is_last or is_due

    def _evaluate(self, newer: Newer) -> None:
        played = self._player.play(newer, self._num_episodes, self._stopping.is_set)
        if self._stopping.is_set():
            return
        if not played.is_complete:
            self._note(f"only {played}")
        if len(played.returns):
            with self._changed:
                self._results.append((newer.version, evaluation_figures(played)))

    def _note(self, text: str) -> None:
        with self._changed:
            self._notes.append(text)

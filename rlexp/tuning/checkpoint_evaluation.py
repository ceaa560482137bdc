"""CheckpointEvaluation: plays the weights of a checkpoint before it is written.

A reward in training is one of exploring policies, with weights of many versions, over the last episodes. What a user
keeps is one version, which acts greedily: it may be far better or worse. So a trial does not end at a reward that its
weights do not reach, and a checkpoint that was played is ranked by that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from rlexp.errors import RlexpError
from rlexp.number_format import score
from rlexp.tuning.stop_condition import Reached, reached

if TYPE_CHECKING:
    from rlexp.agents.agent import Agent
    from rlexp.rollout.evaluation import ReportProgress, ShouldStop

SHARE: Final = 0.05
"""Of a trial's time that evaluations of checkpoints take at most, but for the first that a reward in ``stop`` needs."""


class CheckpointEvaluation:
    """Owned by a trial's process. While it has evaluated, the learner is held until ``release``.

    So the checkpoint that is written before has the weights that were played.
    """

    def __init__(
        self,
        agent: Agent[Any],
        num_episodes: int,
        should_stop: ShouldStop,
        report: ReportProgress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Play ``num_episodes`` each time; with 0 there are no evaluations, and every reward counts."""
        self._agent = agent
        self._num_episodes = num_episodes
        self._should_stop = should_stop
        self._report = report
        self._clock = clock
        self._held = ExitStack()
        self._last_end_s = clock()
        self._cost_s = 0.0
        """Of the last evaluation, or of what it might have taken if it was cut off."""

    def end_reason(self, stop: Mapping[str, float], row: dict[str, Any]) -> str | None:
        """Return which value of ``stop`` ends the trial; a reward of training only where the weights have it too."""
        found = reached(stop, row)
        ends = found is not None and (not found.needs_evaluation or self.confirms(found, row))
        return str(found) if ends else None

    def confirms(self, goal: Reached, row: dict[str, Any]) -> bool:
        """Return whether the weights reach a goal too that the training reward in ``row`` has reached.

        False as well where it is too soon to play again. The figures of the evaluation are added to ``row``.
        """
        if not self._num_episodes:
            return True
        if self._cost_s > SHARE * self._elapsed_s:
            return False
        figures = self._play(self._agent.config.evaluation_timeout_s)
        if figures is None:
            return self._counts_alone(goal)
        row["evaluation"] = figures
        played = figures[goal.metric.removesuffix("_all")]
        if played >= goal.goal:
            return True
        self._agent.add_event(
            f"{goal}, but {self._num_episodes} episodes of an evaluation had {score(played)}: training continues"
        )
        return False

    def add_figures(self, row: dict[str, Any]) -> None:
        """Add the figures of an evaluation to the ``row`` of a checkpoint, unless it has some or there is no time."""
        limit_s = SHARE * self._elapsed_s
        if not self._num_episodes or "evaluation" in row or self._cost_s > limit_s:
            return
        figures = self._play(limit_s)
        if figures is not None:
            row["evaluation"] = figures

    def release(self) -> None:
        """Let the learner go on."""
        self._held.close()

    def _counts_alone(self, goal: Reached) -> bool:
        """Return whether a reward counts whose evaluation had no end: not if it was cut off to stop the trial."""
        if self._should_stop():
            return False
        if self._num_episodes:
            self._agent.add_event(f"{goal}; its evaluation was not over in time, so the reward alone counts")
        return True

    @property
    def _elapsed_s(self) -> float:
        return self._clock() - self._last_end_s

    def _play(self, limit_s: float) -> Mapping[str, Any] | None:
        """Return the figures of an evaluation, None where it was cut off or failed; the learner is held from now on."""
        from rlexp.agents.evaluation import evaluation_figures  # it loads Gymnasium, and the command needs none

        def is_over() -> bool:
            return self._should_stop() or self._clock() >= end_s

        try:
            self._agent.prepare_evaluation(self._should_stop)
            self._held.enter_context(self._agent.optimizer.paused())
            began_s = self._clock()
            end_s = began_s + limit_s
            played = self._agent.evaluate(self._num_episodes, is_over, self._report)
        except RlexpError as error:  # an env that cannot be played twice can still be trained on
            self._agent.add_event(f"checkpoints are not evaluated any more: {error.message}")
            self._num_episodes = 0
            return None
        self._last_end_s = self._clock()
        # Of one that was cut off, only a lower bound is known: with twice as much time it may succeed.
        self._cost_s = (self._last_end_s - began_s) * (1 if played.is_complete else 2)
        return evaluation_figures(played) if played.is_complete else None

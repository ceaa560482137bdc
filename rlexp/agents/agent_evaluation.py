"""AgentEvaluation: the evaluations of a trial while it trains, with the weights that its learner has by then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rlexp.agents.evaluation_process import EvaluationProcess, EvaluatorParts, Spaces
from rlexp.agents.evaluator import MAX_STEPS, Evaluator, evaluation_figures, evaluation_seed
from rlexp.agents.observation_filters import ObservationFilters
from rlexp.policy import Weights
from rlexp.rollout.evaluation import EvaluationLimits, PlayedEpisodes, ReportProgress, ShouldStop
from rlexp.rollout.user_callbacks import UserCallbacks
from rlexp.sample_batch import Array
from rlexp.seeding import derive_seed


@dataclass(frozen=True)
class AgentEvaluation:
    """Owned by one agent."""

    parts: EvaluatorParts
    spaces: Spaces
    filters: ObservationFilters
    callbacks: UserCallbacks
    seed: int
    """Of the trial."""
    get_weights: Callable[[], Weights]
    """Returns the learner's weights as they are at that moment."""
    add_event: Callable[[str], None]
    """Takes a sentence for the user."""
    process: EvaluationProcess | None
    """Plays in place of this process; None: the envs of training are in this process too."""

    def prepare(self, should_stop: ShouldStop) -> None:
        """Start the process that ``play_apart`` needs, if any; raises TrialError where it dies."""
        if self.process is not None:
            self.process.prepare(should_stop)

    def play_apart(
        self, iteration: int, num_episodes: int, should_stop: ShouldStop, report: ReportProgress
    ) -> PlayedEpisodes:
        """Return the same episodes as ``play``, played where no env can end or stop this process."""
        if self.process is None:
            return self.play(iteration, num_episodes, should_stop, report)
        what = self.get_weights(), self.filters, num_episodes, evaluation_seed(self.seed, iteration)
        return self.process.play(*what, should_stop, report)

    def play(
        self, iteration: int, num_episodes: int, should_stop: ShouldStop, report: ReportProgress
    ) -> PlayedEpisodes:
        """Return the episodes of an evaluation after ``iteration``; see :meth:`Agent.evaluate`."""
        limits = EvaluationLimits(MAX_STEPS, self.parts.config.evaluation_timeout_s, should_stop)
        return self._evaluator().play(num_episodes, evaluation_seed(self.seed, iteration), limits, report)

    def film(self, iteration: int) -> tuple[Iterator[Array], float]:
        """Return the pictures of an episode after ``iteration``, and how many make a second."""
        return self._evaluator().film(derive_seed(self.seed, "film", iteration))

    def figures_when_due(self, iteration: int, should_stop: ShouldStop, report: ReportProgress) -> dict[str, Any]:
        """Return the row's part about an evaluation, in every ``evaluation_interval``-th iteration.

        A stop that is requested cannot wait for it, and the episodes that end before are the short ones: no figures.
        """
        config = self.parts.config
        interval = config.evaluation_interval
        if not interval or iteration % interval or should_stop():
            return {}
        played = self.play(iteration, config.evaluation_num_episodes, should_stop, report)
        if should_stop() and not played.is_complete:
            return {}
        if not played.is_complete:
            self.add_event(f"{played}; set evaluation_config.horizon, or a longer evaluation_timeout_s")
        return {"evaluation": evaluation_figures(played)}

    def _evaluator(self) -> Evaluator:
        """Return what evaluates the learner's weights as they are now."""
        return self.parts.evaluator(self.spaces, self.get_weights(), self.filters, self.callbacks)

"""A package that brings an agent, written into a folder as pip installs it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

KEYS: Final = '''
from typing import ClassVar, Literal

from rlexp.config.keys.dqn import DQNConfig, DQNExperiment
from rlexp.config.keys.fields import Positive


class TwiceDQNConfig(DQNConfig):
    """The keys of DQN, and one more."""

    reward_factor: Positive = 2.0
    """Rewards are multiplied by this."""


class TwiceDQNExperiment(DQNExperiment):
    """An experiment with TwiceDQN."""

    AGENT: ClassVar[str] = "twice_dqn.agent:TwiceDQNAgent"
    run: Literal["TwiceDQN"]
    config: TwiceDQNConfig = TwiceDQNConfig()
'''
AGENT: Final = '''
from rlexp.agents.dqn.agent import DQNAgent
from rlexp.sample_batch import REWARDS


class TwiceLearner:
    """A learner that passes everything on to one of DQN, but larger rewards."""

    def __init__(self, learner, factor):
        self._learner, self._factor = learner, factor

    @property
    def num_updates(self):
        return self._learner.num_updates

    def learn_on_batch(self, batch):
        return self._learner.learn_on_batch(batch.with_columns(**{REWARDS: batch[REWARDS] * self._factor}))

    def observe_progress(self, num_steps_sampled):
        self._learner.observe_progress(num_steps_sampled)

    def stats(self):
        return self._learner.stats()

    def get_weights(self):
        return self._learner.get_weights()

    def state_dict(self):
        return self._learner.state_dict()

    def load_state_dict(self, state):
        self._learner.load_state_dict(state)


class TwiceDQNAgent(DQNAgent):
    """DQN that learns from larger rewards."""

    def make_learner(self):
        return TwiceLearner(super().make_learner(), self.config.reward_factor)

    def stats(self):
        return {**super().stats(), "reward_factor": self.config.reward_factor}
'''
ENTRY: Final = "TwiceDQN = twice_dqn.keys:TwiceDQNExperiment"


def install_agent(
    site: Path, *, entry: str = ENTRY, keys: str = KEYS, agent: str = AGENT, package: str = "twice-dqn"
) -> Path:
    """Write the package into the folder ``site`` and return that."""
    code, info = site / "twice_dqn", site / f"{package.replace('-', '_')}-1.0.dist-info"
    for folder in (code, info):
        folder.mkdir(parents=True, exist_ok=True)
    (code / "__init__.py").write_text("")
    (code / "keys.py").write_text(keys)
    (code / "agent.py").write_text(agent)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rlexp.agents]\n{entry}\n")
    return site

"""PPO's files, as several tests load them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from rlexp.cluster.room import Cluster, Machine
from rlexp.cluster.room.fit import fitted
from rlexp.config.keys.ppo import PPOConfig
from rlexp.config.load import Plan
from rlexp.errors import ConfigError

Load = Callable[..., Plan]
GIB = 2**30


def config_of(plan: Plan) -> PPOConfig:
    made = plan.trials[0].experiment.config
    assert isinstance(made, PPOConfig)
    return made


def messages(plan: Plan) -> list[str]:
    return [notice.message for notice in plan.notices]


def problems(load: Load, text: str, *overrides: str, **options: Any) -> list[tuple[str, str, str | None]]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, **options)
    return [(problem.where, problem.message, problem.hint) for problem in caught.value.problems]


def fit_to(cpus: int, gpus: int = 0) -> Any:
    return partial(fitted, cluster=Cluster.of(Machine(cpus, gpus, 8 * GIB, 8 * GIB)))

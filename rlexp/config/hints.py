"""What to do about a key, a metric or an agent that does not exist: the nearest spelling, or where it belongs."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from rlexp.config.experiment import AGENTS
from rlexp.config.key_table import KeyName, key_table
from rlexp.config.metric_names import KNOWN_METRICS
from rlexp.config.nodes import dotted, shown_key

_LIKENESS = 0.6
"""How alike two words must be (difflib's ratio) for one to be offered in place of the other."""

_LONGEST_COMPARED = 100


_ALGORITHMS = """
A2C A3C ALPHASTAR ALPHAZERO APEX_DDPG APPO ARS BC CQL CRR DDPG DDPPO DREAMER DREAMERV3 DT ES IMPALA IQL
LEELACHESSZERO MADDPG MAML MARWIL MBMPO PG QMIX R2D2 RNNSAC SAC SIMPLEQ SLATEQ TD3
"""
RLLIB_ALGORITHMS = frozenset(_ALGORITHMS.split())
"""What RLlib's files may name that does not run here."""


def for_unknown_key(path: KeyName, run: str) -> str | None:
    """Return what to do about a key that the agent does not have where it stands."""
    name, group = path[-1], path[:-1]
    table = key_table(run)
    elsewhere = [key.path[:-1] for key in table.values() if key.name == name]
    if elsewhere:
        return f"{name} belongs {_below(elsewhere[0])}"
    others = [other for other in AGENTS if any(key.name == name for key in key_table(other).values())]
    if others:
        return f"{name} is a key of {' and '.join(others)}"
    nearest = _nearest(name, [key.name for key in table.values()])
    if nearest is None:
        return None
    paths = [key.path for key in table.values() if key.name == nearest]
    return f"did you mean {nearest if (*group, nearest) in paths else dotted(paths[0])}?"


def for_unknown_metric(metric: str) -> str:
    """Return what to do about a metric that no result reports."""
    name = metric.rpartition("/")[2].replace("return", "reward")  # RLlib 2's words: env_runners/episode_return_mean
    nearest = name if name in KNOWN_METRICS else _nearest(metric, KNOWN_METRICS)
    return f"did you mean {nearest}?" if nearest else f"metrics are {', '.join(KNOWN_METRICS)}"


def for_unknown_agent(run: str) -> str:
    """Return what to do about an agent that is not here."""
    nearest = None if run.upper() in RLLIB_ALGORITHMS else _nearest(run.upper(), list(AGENTS))
    return f"did you mean {nearest}?" if nearest else f"write {agents()}"


def agents() -> str:
    """Return the agents that there are, for a sentence."""
    *others, last = AGENTS
    return f"{', '.join(others)} or {last}"


def _below(group: KeyName) -> str:
    return f"under {dotted(group)}" if group else "beside config, not inside it"


def _nearest(word: str, words: Sequence[str]) -> str | None:
    matches = get_close_matches(shown_key(word[:_LONGEST_COMPARED]), words, n=1, cutoff=_LIKENESS)
    return matches[0] if matches else None

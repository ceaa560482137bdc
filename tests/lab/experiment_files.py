"""Files with one experiment, as tests of keys write them: what they plan, and what is wrong with them or their keys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlexp.config.keys.fields import Conflict, KeyGroup
from rlexp.config.load import Plan, load_plan
from rlexp.errors import ConfigError

Load = Callable[..., Plan]


def planned(text: str, seed: int | None = None) -> Plan:
    """Plan a file with this text, which is written to the current folder of the test."""
    Path("f.yaml").write_text(text)
    return load_plan(["f.yaml"], seed=seed)


def config_of(plan: Plan) -> Any:
    """Return the keys under ``config`` of the first trial, whatever the agent."""
    return plan.trials[0].experiment.config


def messages(plan: Plan) -> list[str]:
    """Return the texts of a plan's notices."""
    return [notice.message for notice in plan.notices]


def problems(load: Callable[..., Any], *arguments: Any, **options: Any) -> list[tuple[str, str, str | None]]:
    """Return the place, message and hint of everything for which ``load`` refuses these arguments."""
    with pytest.raises(ConfigError) as caught:
        load(*arguments, **options)
    return [(problem.where, problem.message, problem.hint) for problem in caught.value.problems]


def conflicts(group: type[KeyGroup], **keys: Any) -> list[Conflict]:
    """Return the conflicts for which a group of keys refuses these; nothing else is wrong with them."""
    with pytest.raises(ValidationError) as caught:
        group.model_validate(keys)
    (detail,) = caught.value.errors()
    return list(detail["ctx"]["conflicts"])

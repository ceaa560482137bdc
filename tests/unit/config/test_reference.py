"""What is said of keys, in docs/keys.md and by `rlexp explain`, and that each has a test of its effect."""

from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import Field

from rlexp.config.keys.agents import AGENTS
from rlexp.config.keys.fields import KeyGroup, defaults_of
from rlexp.config.keys.key_table import key_table
from rlexp.config.reference import explain
from rlexp.config.reference.explain import find_keys, find_old_key, key_references, nearest_key
from rlexp.config.reference.page import behaviour_tests, page

ROOT = Path(__file__).parents[3]
BEHAVIOUR = ROOT / "tests" / "behaviour"


class OtherKeys(KeyGroup):
    """Keys of an agent that gives one of them another meaning."""

    n_step: int = 1
    """Other steps."""

    gamma: float = Field(1.0, description="Another discount.")


def without_tests(text: str) -> list[str]:
    """Return the page's lines without the column of tests, which grows with every new test."""
    return [line.rpartition(" | ")[0] or line for line in text.splitlines()]


def test_keys_page_is_current() -> None:
    written = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    assert without_tests(written) == without_tests(page({})), "run `make keys`"


def test_keys_page_names_behaviour_tests(tmp_path: Path) -> None:
    (tmp_path / "test_keys_a.py").write_text(
        'import pytest\n\n@pytest.mark.key("lr", "optimizer.debug")\ndef test_rates() -> None: ...\n'
        '\n@pytest.mark.key("stop")\nclass TestStop: ...\n\ndef test_other() -> None: ...\n'
    )
    tests = behaviour_tests(tmp_path)
    assert tests == {
        "lr": "test_keys_a::test_rates",
        "optimizer.debug": "test_keys_a::test_rates",
        "stop": "test_keys_a::TestStop",
    }
    assert "`test_keys_a::test_rates`" in next(line for line in page(tests).splitlines() if line.startswith("| `lr`"))


def test_every_key_has_a_behaviour_test() -> None:
    tests = behaviour_tests(BEHAVIOUR)
    keys = [key for key in key_references() if not key.is_group]
    names = {key.dotted.removeprefix("config.") for key in keys}
    unknown = {name for name in tests if name not in names and f"optimizer.{name}" not in names}
    assert not unknown, f"tests of keys that there are not: {sorted(unknown)}"
    missing = sorted(name for name in names if name not in tests and name.removeprefix("optimizer.") not in tests)
    assert not missing, f"keys without a test in tests/behaviour: {missing}"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("lr", ["config.lr"]),
        ("config.lr", ["config.lr"]),
        ("debug", ["config.optimizer.debug"]),
        ("model.dim", ["config.model.dim"]),
        ("num_env_runners", ["config.num_workers"]),
        ("gpu", ["config.num_gpus"]),
        ("exploration_config.final_epsilon", ["config.exploration_final_eps"]),
        ("nothing", []),
    ],
)
def test_find_keys_by_any_name(name: str, found: list[str]) -> None:
    assert [key.dotted for key in find_keys(name)] == found


def test_find_old_key() -> None:
    gone = find_old_key("model.use_lstm")
    assert gone is not None
    assert (gone.dotted, gone.says) == ("config.model.use_lstm", "is not supported by rlexp: LSTM models")
    assert find_old_key("nothing") is None
    assert nearest_key("num_wokers") == "num_workers"


@pytest.mark.parametrize("run", AGENTS)
def test_defaults_that_are_not_validated_are_those_that_are(run: str) -> None:
    group = AGENTS[run].model_fields["config"].annotation
    assert isinstance(group, type)
    assert defaults_of(group) == group()


def test_meaning_may_be_the_description_of_a_field() -> None:
    key = key_table("DQN")["config", "gamma"]
    assert replace(key, group=OtherKeys).meaning == "Another discount."


def test_meaning_is_read_of_a_class_in_a_function() -> None:
    class Nested(KeyGroup):
        gamma: float = 1.0
        """The margin
of this text is none."""

    key = key_table("DQN")["config", "gamma"]
    assert replace(key, group=Nested).meaning == "The margin\nof this text is none."


def test_keys_of_a_class_without_source_have_no_meaning() -> None:
    source = "class Made(KeyGroup):\n    gamma: float = 1.0\n    'No file has this text.'\n"
    names = {"KeyGroup": KeyGroup, "__name__": "nowhere"}
    exec(source, names)  # as a notebook or a debugger makes classes
    key = key_table("DQN")["config", "gamma"]
    assert replace(key, group=names["Made"]).meaning == ""  # type: ignore[arg-type]


def test_key_reference_has_defaults_by_agent() -> None:
    (key,) = find_keys("n_step")
    assert key.defaults == {"DQN": 1, "APEX": 3}


def test_key_reference_has_values_and_meaning_by_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {run: dict(key_table(run)) for run in AGENTS}
    path = ("config", "n_step")
    tables["APEX"][path] = replace(tables["APEX"][path], expects="a number", group=OtherKeys)
    monkeypatch.setattr(explain, "key_table", tables.__getitem__)
    explain.key_references.cache_clear()
    try:
        (key,) = find_keys("n_step")
    finally:
        explain.key_references.cache_clear()
    dqn = key_table("DQN")[path]
    assert key.expects == "a whole number >= 1 (DQN), a number (APEX)"
    assert key.meaning == f"DQN: {dqn.meaning} APEX: Other steps."

"""Where masks are found, the rows that carry them, and the errors of wrong ones."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, Space

from rlexp.envs.action_masks import MaskedSpace, MaskReader, like, mask_reader_of_env, random_actions, with_masks
from rlexp.envs.checked_env import CheckedVectorEnv
from rlexp.envs.env_check import EnvCheck, Limit
from rlexp.envs.make import make_env, make_vector_env, spaces_of
from rlexp.envs.registry import EnvConfig
from rlexp.envs.snapshots import restore_snapshot, take_snapshot
from rlexp.errors import EnvError, UsageError
from rlexp.states import join_state, split_state
from tests.lab.envs import CONTINUOUS_ENV, COUNTING_ENV, CountingVectorEnv
from tests.lab.masks import IMAGE, MASKED_VECTOR, MASKED_WORLD, MULTI_NUMBERS, NUM_ACTIONS, MaskedWorld

PLACES = ("observation", "info", "method")
WIDTHS = {"vector": 3, "image": int(np.prod(IMAGE)), "number": 4}


def config_of(env: str = MASKED_WORLD, action_mask: Any = "auto", **env_config: Any) -> EnvConfig:
    return EnvConfig(env, env_config, action_mask=action_mask)


def played(config: EnvConfig, num_steps: int = 60) -> list[Any]:
    """Play random allowed actions; return the rows of each step."""
    vector = make_vector_env(config, 3)
    space = vector.single_observation_space
    assert isinstance(space, MaskedSpace)
    rows = [vector.reset(seed=1)[0]]
    for _ in range(num_steps):
        actions = random_actions(vector.single_action_space, space.choices, space.allowed(rows[-1]))
        rows.append(vector.step(actions)[0])
    vector.close()
    return rows


@pytest.mark.parametrize("env", [MASKED_WORLD, MASKED_VECTOR])
@pytest.mark.parametrize("place", PLACES)
def test_masks_follow_observations_wherever_an_env_has_them(place: str, env: str) -> None:
    rows = np.stack(played(config_of(env, place=place)))
    assert rows.shape == (61, 3, 3 + NUM_ACTIONS)
    assert rows.dtype == np.float32
    masks = rows[..., 3:]
    assert set(np.unique(masks)) == {0.0, 1.0}
    assert (rows[..., 2] == 0.5).all()
    assert masks.any(axis=2).all()  # also after a last step, whose mask is empty


@pytest.mark.parametrize("see", WIDTHS)
@pytest.mark.parametrize("place", PLACES)
def test_any_observation_can_have_a_mask(place: str, see: str) -> None:
    observation_space, _ = spaces_of(config_of(place=place, see=see))
    assert isinstance(observation_space, MaskedSpace)
    assert observation_space.shape == (WIDTHS[see] + NUM_ACTIONS,)
    assert observation_space.source == place
    assert observation_space.observation.shape == (IMAGE if see == "image" else (WIDTHS[see],))
    assert played(config_of(place=place, see=see), 3)[0].shape == (3, WIDTHS[see] + NUM_ACTIONS)


def test_several_numbers_have_one_flat_mask() -> None:
    rows = played(config_of(is_multi=True))
    assert rows[0].shape == (3, 3 + MULTI_NUMBERS)


def test_several_other_parts_of_a_dict_stay_together() -> None:
    observation_space, _ = spaces_of(config_of("tests.unit.envs.test_action_masks:TwoParts"))
    assert isinstance(observation_space, MaskedSpace)
    assert observation_space.observation.shape == (5,)


class TwoParts(gym.Env[Any, Any]):
    """Has two parts of an observation beside its mask, and no others than valid actions."""

    def __init__(self) -> None:
        parts: dict[str, Space[Any]] = {
            "a": Box(-1, 1, (2,), np.float32),
            "action_mask": Box(0, 1, (2,), np.int8),
            "b": Discrete(3),
        }
        self.observation_space = Dict(parts)
        self.action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return {"a": np.zeros(2, np.float32), "action_mask": np.ones(2, np.int8), "b": 1}, {}


def test_null_leaves_a_mask_in_the_observation() -> None:
    observation_space, _ = spaces_of(config_of(action_mask=None))
    assert not isinstance(observation_space, MaskedSpace)
    assert observation_space.shape == (3 + NUM_ACTIONS,)


def test_an_env_without_masks_is_unchanged() -> None:
    masked, plain = (make_vector_env(config_of(COUNTING_ENV, mask), 2) for mask in ("auto", None))
    assert type(masked) is type(plain)
    assert masked.single_observation_space == plain.single_observation_space


def test_workers_know_where_masks_are() -> None:
    for place in PLACES:
        config = config_of(place=place)
        assert like(config, spaces_of(config)[0]).action_mask == place
    assert like(config_of(COUNTING_ENV), spaces_of(config_of(COUNTING_ENV))[0]).action_mask is None


def test_continuous_actions_have_no_masks() -> None:
    with pytest.raises(UsageError, match=r"masks actions by info\['action_mask'\], but its actions Box") as caught:
        make_vector_env(config_of(CONTINUOUS_ENV, "info"), 1)
    assert "action_mask: null" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("masks", "ended", "expected"),
    [
        ([[1, 0, 1]], False, r"has the shape \(3,\), but there are 5 actions"),
        ([[0, 0, 0, 0, 0]], False, "allows no action, but the episode goes on"),
        ([[0, 0, 0, 0, 2]], True, "has other values than 0 and 1"),
        ([[0.5, 0, 0, 0, 1]], False, "has other values than 0 and 1"),
        (["abcde"], False, r"has the shape \(\), but there are 5 actions"),
        ([[1, 1, 1, 0, 0]], False, "allows no action"),
    ],
)
def test_wrong_masks_are_located(masks: Any, ended: bool, expected: str) -> None:
    choices = (3, 2) if "allows no action" in expected and masks[0][0] else (5,)
    reader = MaskReader("my-env", "info", choices)
    with pytest.raises(EnvError, match=rf"env my-env: info\['action_mask'\] {expected}"):
        reader.checked(masks, np.array([True]), np.array([ended]))


def test_a_missing_mask_is_missed_unless_the_episode_has_ended() -> None:
    reader, none = MaskReader("my-env", "info", (2,)), np.array([False])
    assert reader.checked([[0, 0]], none, np.array([True])).tolist() == [[True, True]]
    with pytest.raises(EnvError, match="is missing, but the episode goes on"):
        reader.checked([[0, 0]], none, np.array([False]))


class GameOver(MaskedWorld):
    """Has no mask once its episode has terminated, and none at all from its third episode on."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = self._own_space
        self.action_masks = self._moves
        self._is_over = False

    def step(self, action: Any) -> Any:
        obs, reward, self._is_over, truncated, info = super().step(action)
        return obs["observations"], reward, self._is_over, truncated, info

    def reset(self, **arguments: Any) -> Any:
        self._is_over = False
        obs, info = super().reset(**arguments)
        return obs["observations"], info

    def _moves(self) -> Any:
        if self._is_over or self._episode > 1:
            raise IndexError("no move is left")
        return self._mask


def test_a_method_is_called_while_the_episode_goes_on_and_its_errors_are_located() -> None:
    config = config_of("tests.unit.envs.test_action_masks:GameOver")
    assert len(played(config, 4)) == 5  # the last observation of the first episode
    assert len(played(config, 14)) == 15  # the next one is truncated, so its mask is asked for
    with pytest.raises(EnvError, match=r"test_action_masks.py:\d+ in _moves: IndexError: no move is left"):
        played(config, 15)


def test_errors_of_a_vector_envs_method_are_located() -> None:
    class Unable(CountingVectorEnv):
        def action_masks(self) -> Any:
            raise ValueError("no masks today")

    vector = with_masks(CheckedVectorEnv(Unable(2), "my-env", 2), config_of("my-env"))
    with pytest.raises(EnvError, match=r"env my-env: .*test_action_masks.py:\d+ in action_masks: ValueError: no masks"):
        vector.reset(seed=0)


@pytest.mark.parametrize("place", PLACES)
def test_a_check_takes_allowed_actions_only(place: str) -> None:
    config = config_of(place=place)
    env = make_env(config)
    check = EnvCheck(MASKED_WORLD, env, masks=mask_reader_of_env(env, config))
    assert not [doubt for doubt in check.doubts(Limit(500, 1000, 60.0)) if doubt.is_error]
    assert check.num_ended > 50


@pytest.mark.parametrize("place", ["observation", "info"])
def test_a_masked_env_continues_from_a_snapshot(place: str) -> None:
    one, other = (make_vector_env(config_of(place=place), 2) for _ in range(2))
    space = one.single_observation_space
    assert isinstance(space, MaskedSpace)
    rows = one.reset(seed=3)[0]
    other.reset(seed=4)
    snapshot = take_snapshot(one)
    assert snapshot is not None
    arrays, values = split_state(snapshot)
    copies = {name: np.array(array) for name, array in arrays.items()}
    assert restore_snapshot(other, join_state(copies, values))
    actions = random_actions(one.single_action_space, space.choices, space.allowed(rows))
    np.testing.assert_array_equal(one.step(actions)[0], other.step(actions)[0])


def test_drawn_rows_get_valid_masks() -> None:
    space = MaskedSpace(Box(-1, 1, (2,), np.float32), "info", (2, 3))
    rows = np.array([[0.3, 0.4, 0.2, 0.1, 0.9, 0.2, 0.6]], np.float32)
    valid = np.array([[0.3, 0.4, 1, 1, 1, 0, 1]], np.float32)
    np.testing.assert_array_equal(space.with_valid_masks(rows), valid)

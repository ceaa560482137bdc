"""UserTorso: a user's torso, made as an experiment names it, and tried before training."""

from __future__ import annotations

from copy import deepcopy
from typing import Final

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlexp.config.keys.model import CUSTOM_MODEL
from rlexp.errors import RlexpError, TrialError, UsageError
from rlexp.models.network_config import CustomTorso
from rlexp.user_code.classes import find_class, prepare_imports
from rlexp.user_code.finding import raised_by_user

CONTRACT: Final = "it maps observations [B, ...] to features [B, num_features] (float32)"
TRIED_ROWS: Final = (2, 1)
"""Rows of the batches with which a torso is tried: code for one row may be wrong for two, and conversely."""
_COUNTER: Final = "num_batches_tracked"
"""The buffer of BatchNorm that is not a floating-point number; unused without ``momentum: None``."""
_FLOAT32: Final = "make them float32; weights are sent and saved as such"


class UserTorso(nn.Module):
    """Owns a user's module, which sees unchanged bytes, and all other observations as float32."""

    def __init__(self, config: CustomTorso) -> None:
        """Make and try it; raises UsageError if it is not a torso."""
        super().__init__()
        self.name = config.user_class.name
        self.own = _made(config)
        self.num_features = _num_features(self.own, self.name)
        batches = [_batch(config, num_rows) for num_rows in TRIED_ROWS]
        outputs = [self._tried(batch) for batch in batches]
        _check_weights(self)  # now, as lazy layers get their weights from the first batch
        self.depends_on_mode = self._differs_in_training(batches[0], outputs[0])
        """Whether it computes something else in training mode, as with dropout or batch normalisation."""

    def forward(self, obs: Tensor) -> Tensor:
        """Return features ``[B, num_features]`` of observations ``[B, ...]``."""
        return self.features(self.seen(obs))

    def seen(self, obs: Tensor) -> Tensor:
        """Return observations as the module sees them."""
        return obs if obs.dtype == torch.uint8 else obs.to(torch.float32)

    def features(self, seen: Tensor) -> Tensor:
        """Return features ``[B, num_features]`` of the result of ``seen``; raises TrialError for any other shape."""
        features: Tensor = self.own(seen)
        if features.shape != (seen.shape[0], self.num_features):  # len() would fix the rows of an exported batch
            raise TrialError(self._wrong_output(features, seen), CONTRACT)
        return features

    def _tried(self, batch: Tensor) -> Tensor:
        """Return the features of a batch in acting mode; raises UsageError if they are not valid."""
        self.eval()
        try:
            with torch.no_grad():
                features = self.own(batch)
        except Exception as error:
            message = (
                f"{CUSTOM_MODEL} {self.name} fails with observations {_shape_and_dtype(batch)}: {raised_by_user(error)}"
            )
            raise UsageError(message, "correct its forward; images are bytes, other observations float32") from error
        finally:
            self.train()
        if not isinstance(features, Tensor) or features.shape != (len(batch), self.num_features):
            raise UsageError(self._wrong_output(features, batch), CONTRACT)
        if not features.is_floating_point():
            raise UsageError(f"{CUSTOM_MODEL} {self.name} returns features of {features.dtype}", CONTRACT)
        if not features.isfinite().all():
            message = f"{CUSTOM_MODEL} {self.name} returns NaN or infinity for observations {_shape_and_dtype(batch)}"
            raise UsageError(message, "correct its first weights or its forward")
        return features

    def _wrong_output(self, features: object, batch: Tensor) -> str:
        found = f"{list(features.shape)}" if isinstance(features, Tensor) else type(features).__name__
        return (
            f"{CUSTOM_MODEL} {self.name} returns {found} for observations {_shape_and_dtype(batch)}, "
            f"not [{len(batch)}, {self.num_features}] as its num_features says"
        )

    def _differs_in_training(self, batch: Tensor, features: Tensor) -> bool:
        """Return whether the module's features of ``batch`` differ in training mode; its mode does not change."""
        copy = deepcopy(self.own).train()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                return not torch.equal(copy(batch), features)
            except Exception as error:
                message = f"{CUSTOM_MODEL} {self.name} fails in training mode: {raised_by_user(error)}"
                raise UsageError(message, "correct its forward") from error


def refuse_modes(torso: nn.Module) -> None:
    """Raise UsageError for a torso that computes something else in training mode.

    PPO compares the probabilities of actions in training with the probabilities when they were taken, at first with the
    same weights. A difference that no update made would be clipped, and ends in noise.
    """
    if isinstance(torso, UserTorso) and torso.depends_on_mode:
        raise UsageError(
            f"{CUSTOM_MODEL} {torso.name} computes other features in training mode; PPO cannot learn from them",
            "leave out Dropout, and use LayerNorm or GroupNorm in place of BatchNorm",
        )


def _made(config: CustomTorso) -> nn.Module:
    """Return a new module of the user's class; raises UsageError if it is missing or cannot be made."""
    name, kwargs = config.user_class.name, config.user_class.kwargs
    prepare_imports((config.user_class.as_part(CUSTOM_MODEL).module,), config.modules)
    found = find_class(CUSTOM_MODEL, name, nn.Module, "torch.nn.Module")
    try:
        return found(config.observation_space, **deepcopy(dict(kwargs)))
    except RlexpError:
        raise
    except Exception as error:
        arguments = "".join(f", {argument}=..." for argument in kwargs)
        message = f"{CUSTOM_MODEL} {name} cannot be made: {raised_by_user(error)}"
        hint = f"correct it; it is made with def __init__(self, observation_space{arguments})"
        raise UsageError(message, hint) from error


def _num_features(module: nn.Module, name: str) -> int:
    given = getattr(module, "num_features", None)
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        found = "has no num_features" if given is None else f"has num_features {given!r}"
        raise UsageError(
            f"{CUSTOM_MODEL} {name} {found}, the number of features that its forward returns",
            "set self.num_features to a whole number in __init__",
        )
    return given


def _check_weights(torso: UserTorso) -> None:
    """Raise UsageError for weights that cannot be sent to workers, as they are not float32."""
    for name, tensor in torso.own.state_dict(keep_vars=True).items():
        is_counter = name.rpartition(".")[2] == _COUNTER
        if isinstance(tensor, Tensor) and (tensor.dtype == torch.float32 or is_counter):
            continue
        if isinstance(tensor, nn.Parameter):
            raise UsageError(f"{CUSTOM_MODEL} {torso.name}: its parameter {name} is of {tensor.dtype}", _FLOAT32)
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        hint = "make it float32, or register a constant with persistent=False: every process makes its own"
        raise UsageError(f"{CUSTOM_MODEL} {torso.name}: its buffer {name} is of {kind}", hint)


def _batch(config: CustomTorso, num_rows: int) -> Tensor:
    """Return observations ``[num_rows, ...]`` within the bounds of their space, equal at each call."""
    space, rng = config.observation_space, np.random.default_rng(0)
    assert isinstance(space, gym.spaces.Box)
    shape = (num_rows, *space.shape)
    if space.dtype == np.uint8:
        return torch.from_numpy(rng.integers(space.low, space.high, shape, np.uint8, endpoint=True))
    return torch.from_numpy(rng.standard_normal(shape, np.float32).clip(space.low, space.high))


def _shape_and_dtype(batch: Tensor) -> str:
    """Return shape and type of a batch for a message: ``[2, 4] (float32)``."""
    return f"{list(batch.shape)} ({str(batch.dtype).removeprefix('torch.')})"

"""Makes an ONNX model of a policy's graph, and compares it with the policy as onnxruntime computes it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from torch import nn

from rlexp.agents.export.policy_graph import GreedyPolicy
from rlexp.errors import RlexpError
from rlexp.sample_batch import Array

INPUT: Final = "obs"
BATCH: Final = "batch"
_ABOUT_OTHER_PACKAGES: Final = "torch.onnx._internal.exporter._registration"
"""The logger that says, for each operator of torchvision, that torchvision is not installed."""


class ExportError(RlexpError):
    """A policy that cannot be exported: nothing was written."""


def onnx_model(graph: nn.Module, example: Array, output_names: Sequence[str], metadata: Mapping[str, str]) -> bytes:
    """Return ``graph`` as an ONNX model for batches of any size.

    ``example [2, ...]`` is what it is traced with: of the first size that torch does not take for a special case.
    Raises ExportError where a part of the network cannot be expressed in ONNX.

    This is PyTorch's exporter through ``torch.export``. The older one needs no onnxscript, but is deprecated, and
    records whatever one example happened to run through: where a network of the user's own has an ``if`` on its
    observations, this one refuses it.
    """
    with _without_notes_on_packages(), torch.inference_mode():
        try:
            program = torch.onnx.export(
                graph,
                (torch.from_numpy(example),),
                input_names=[INPUT],
                output_names=list(output_names),
                dynamic_shapes=({0: torch.export.Dim(BATCH)},),
                dynamo=True,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ExportError(
                f"the network cannot be expressed in ONNX: {_cause(error)}",
                "a network of your own must not branch on the numbers in its observations",
            ) from error
    assert program is not None
    program.model.metadata_props.update(metadata)
    content: bytes = program.model_proto.SerializeToString()
    return content


def _cause(error: BaseException) -> str:
    """Return the first line of what an error of the exporter began with."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _without_notes_on_packages() -> Iterator[None]:
    """Silence what the exporter says of packages that are not needed, and of its own use of PyTorch."""
    logger = logging.getLogger(_ABOUT_OTHER_PACKAGES)
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            yield
    finally:
        logger.disabled = before


TOLERANCE: Final = 1e-4
"""Of the outputs on one set of observations, as a part of the largest: sums in float32 depend on their order."""
LONGEST_MESSAGE: Final = 500
"""Characters of an error of onnxruntime that are shown; which dimension is wrong comes last."""
BATCH_SIZES: Final = (1, 7, 256)
"""Rows that the model is given at a time, the last size again and again: it has to take any number."""


@dataclass(frozen=True)
class TensorForm:
    """An input or output of a model, as onnxruntime reads it."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """A name instead of a number is a size that differs from call to call."""


@dataclass(frozen=True)
class Verification:
    """A model that computes what the policy computes."""

    num_observations: Mapping[str, int]
    """By where they are from."""
    largest_difference: float
    """Between two numbers of the outputs, or of continuous actions."""
    num_other_actions: int | None
    """Observations on which the actions differ, since outputs that are equal within the tolerance tie for the best.

    None for continuous actions, which are among the outputs that are compared.
    """
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]


class _NodeArg(Protocol):
    """How onnxruntime describes an input or an output: ``tensor(float)`` is one of float32."""

    name: str
    type: str
    shape: Sequence[int | str]


class Verifier:
    """Runs a model beside the policy."""

    def __init__(self, model: bytes, policy: GreedyPolicy) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors: what it says of optimisations is no news for users of rlexp
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._policy = policy

    def verify(self, observations: Mapping[str, Array]) -> Verification:
        """Return how near the model is to the policy; raises ExportError where it is another one.

        ``observations [N, ...]`` are in sets, by where they are from: each has a tolerance of its own.
        """
        differences, num_other = [], 0
        for source, obs in observations.items():
            actions, *outputs = self._computed(obs)
            ours = self._policy.outputs(obs)
            for name, computed, expected in zip(self._policy.output_names[1:], outputs, ours, strict=True):
                differences.append(_difference(name, source, computed, expected))
            differences.append(self._check_choice(source, actions, outputs[0]))
            num_other += self._num_other_actions(actions, self._policy.actions_by(ours[0]))
        return Verification(
            {source: len(obs) for source, obs in observations.items()},
            max(differences),
            num_other if self._policy.chooses_numbers else None,
            _forms(self._session.get_inputs()),
            _forms(self._session.get_outputs()),
        )

    def _computed(self, obs: Array) -> list[Array]:
        """Return what the model computes for ``obs [N, ...]``, in batches of different sizes."""
        try:
            parts = [self._session.run(None, {INPUT: batch}) for batch in _batches(obs)]
        except Exception as error:  # onnxruntime's errors have no class in common
            raise ExportError(
                f"onnxruntime does not compute the ONNX model: {' '.join(str(error).split())[:LONGEST_MESSAGE]}",
                "a network of your own may fix the rows of a batch, as len(obs) does: write obs.shape[0] there",
            ) from error
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def _check_choice(self, source: str, actions: Array, outputs: Array) -> float:
        """Check that actions follow from the model's own outputs as the policy's from its; return their difference."""
        expected = self._policy.actions_by(outputs)
        if not self._policy.chooses_numbers:
            return _difference("actions", source, actions, expected)
        if not np.array_equal(actions, expected) or actions.dtype != expected.dtype:
            raise _another_policy("actions", source, "they are not those of the best outputs")
        return 0.0

    def _num_other_actions(self, actions: Array, expected: Array) -> int:
        if not self._policy.chooses_numbers:
            return 0
        differs = (actions != expected).reshape(len(actions), -1)
        return int(differs.any(axis=1).sum())


def refuse_unplayed_actions(policy: GreedyPolicy, observations: Mapping[str, Array]) -> None:
    """Raise ExportError where ``policy`` is exported as other actions than evaluations play.

    That is what a model is compared with, so the Verifier would not see it. An agent of a package may mask actions
    where it plays, but not where it says how it is exported.
    """
    for source, obs in observations.items():
        played, exported = policy.played_actions(obs), policy.actions_by(policy.outputs(obs)[0])
        tolerance = 0.0 if policy.chooses_numbers else TOLERANCE
        if played.shape == exported.shape and np.allclose(played, exported, rtol=tolerance, atol=tolerance):
            continue
        raise ExportError(
            f"the checkpoint plays other actions than those that its agent exports, for observations {source}",
            "nothing was written; exportable, of the agent's Policies, must choose as compute_actions of its policy",
        )


def _batches(obs: Array) -> Iterator[Array]:
    start = 0
    sizes = iter(BATCH_SIZES)
    while start < len(obs):
        size = next(sizes, BATCH_SIZES[-1])
        yield obs[start : start + size]
        start += size


def _difference(name: str, source: str, computed: Array, expected: Array) -> float:
    """Return the largest difference of two arrays; raises ExportError where it is too large."""
    if computed.shape != expected.shape or computed.dtype != expected.dtype:
        raise _another_policy(name, source, f"{_form(computed)} instead of {_form(expected)}")
    difference = float(np.abs(computed.astype(np.float64) - expected).max())
    limit = TOLERANCE * max(1.0, float(np.abs(expected).max()))
    if not difference <= limit:  # NaN is not
        raise _another_policy(name, source, f"the largest difference is {difference:.3g}, more than {limit:.3g}")
    return difference


def _form(array: Array) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _another_policy(name: str, source: str, what: str) -> ExportError:
    return ExportError(
        f"the ONNX model does not compute what the checkpoint computes: {name} of observations {source}: {what}",
        "nothing was written; this is an error of rlexp, PyTorch or onnxruntime: please report it",
    )


def _forms(values: Sequence[_NodeArg]) -> tuple[TensorForm, ...]:
    kinds = {"float": "float32", "double": "float64"}
    return tuple(TensorForm(value.name, kinds.get(kind := _kind(value), kind), tuple(value.shape)) for value in values)


def _kind(value: _NodeArg) -> str:
    return value.type.removeprefix("tensor(").removesuffix(")")

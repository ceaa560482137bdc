"""Makes an ONNX model of a policy's graph, and compares its outputs in onnxruntime with the policy's."""

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

from rlexp.agents.export.policy_graph import GreedyPolicy, Observations, RecurrentGraph
from rlexp.errors import RlexpError
from rlexp.models.memory import STATE_OUT
from rlexp.models.network_config import MASKED
from rlexp.sample_batch import Array

BATCH: Final = "batch"
_ABOUT_OTHER_PACKAGES: Final = "torch.onnx._internal.exporter._registration"
"""The logger that reports, for each operator of torchvision, that torchvision is not installed."""


class ExportError(RlexpError):
    """Raised for a policy that cannot be exported; nothing was written."""


def onnx_model(
    graph: nn.Module, example: Mapping[str, Array], output_names: Sequence[str], metadata: Mapping[str, str]
) -> bytes:
    """Return ``graph`` as an ONNX model for batches of any size.

    ``example`` has the inputs of the trace, arrays ``[2, ...]``, by name; 2 is the smallest size that torch does not
    treat as a special case. Raises ExportError if a part of the network cannot be expressed in ONNX.

    This is PyTorch's exporter through ``torch.export``. The older exporter needs no onnxscript, but is deprecated, and
    records only the branch that one example took. This one refuses a user's network with an ``if`` on its observations.
    """
    sizes = ({0: torch.export.Dim(BATCH)},) * len(example)
    with _without_notes_on_packages(), torch.inference_mode():
        try:
            program = torch.onnx.export(
                graph,
                tuple(map(torch.from_numpy, example.values())),
                input_names=list(example),
                output_names=list(output_names),
                dynamic_shapes=(sizes,) if isinstance(graph, RecurrentGraph) else sizes,
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
    """Return the first line of the exporter's first error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextmanager
def _without_notes_on_packages() -> Iterator[None]:
    """Silence the exporter's notes about packages that are not needed, and about its own use of PyTorch."""
    logger = logging.getLogger(_ABOUT_OTHER_PACKAGES)
    before = logger.disabled
    logger.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            warnings.filterwarnings("ignore", r".*The axis name: batch will not be used", UserWarning)
            yield
    finally:
        logger.disabled = before


TOLERANCE: Final = 1e-4
"""Tolerance of outputs on one set of observations, relative to the largest; float32 sums depend on their order."""
LONGEST_MESSAGE: Final = 500
"""Most characters of an onnxruntime error that are shown; the wrong dimension comes last."""
BATCH_SIZES: Final = (1, 7, 256)
"""Rows given to the model at a time, the last size repeatedly, as it must take any number."""


@dataclass(frozen=True)
class TensorForm:
    """An input or output of a model, as onnxruntime describes it."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """The size of each dimension; a name instead of a number is a size that varies from call to call."""


@dataclass(frozen=True)
class Verification:
    """The result for a model that computes the same as the policy."""

    num_observations: Mapping[str, int]
    """Number of observations, by their source."""
    largest_difference: float
    """Largest difference between two numbers of the outputs, or of continuous actions."""
    num_other_actions: int | None
    """Observations with different actions, because outputs that are equal within the tolerance tie.

    None for continuous actions, which are compared as outputs.
    """
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]


class _NodeArg(Protocol):
    """onnxruntime's description of an input or an output: ``tensor(float)`` means float32."""

    name: str
    type: str
    shape: Sequence[int | str]


class Verifier:
    """Runs a model and the policy on the same observations."""

    def __init__(self, model: bytes, policy: GreedyPolicy) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only: notes on optimisations are not for users of rlexp
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._policy = policy

    def verify(self, observations: Mapping[str, Observations]) -> Verification:
        """Return how near the model is to the policy; raises ExportError if it differs.

        ``observations [N, ...]`` are in sets by their source; each set has its own tolerance.
        """
        differences, num_other = [], 0
        for source, obs in observations.items():
            actions, *outputs = self._computed(obs)
            ours = self._policy.outputs(obs)
            agree = self._agree(actions, self._policy.actions_by(ours[0]))
            for name, computed, expected in zip(self._policy.output_names[1:], outputs, ours, strict=True):
                rows = agree if name == STATE_OUT else slice(None)  # a state may have the action in it
                differences.append(_difference(name, source, computed[rows], expected[rows]))
            differences.append(self._check_choice(source, actions, outputs[0]))
            num_other += int(np.count_nonzero(~agree))
        return Verification(
            {source: len(obs) for source, obs in observations.items()},
            max(differences),
            num_other if self._policy.chooses_numbers else None,
            _forms(self._session.get_inputs()),
            _forms(self._session.get_outputs()),
        )

    def _computed(self, obs: Observations) -> list[Array]:
        """Return the model's outputs for ``obs [N, ...]``, computed in batches of different sizes."""
        try:
            parts = [self._session.run(None, self._policy.inputs_of(batch)) for batch in _batches(obs)]
        except Exception as error:  # onnxruntime's errors have no class in common
            raise ExportError(
                f"onnxruntime does not compute the ONNX model: {' '.join(str(error).split())[:LONGEST_MESSAGE]}",
                "a network of your own may fix the rows of a batch, as len(obs) does: write obs.shape[0] there",
            ) from error
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def _check_choice(self, source: str, actions: Array, outputs: Array) -> float:
        """Check that the actions follow from the model's outputs as the policy's do; return their difference."""
        expected = self._policy.actions_by(outputs)
        if not self._policy.chooses_numbers:
            return _difference("actions", source, actions, expected)
        if not np.array_equal(actions, expected) or actions.dtype != expected.dtype:
            raise _another_policy("actions", source, "they do not belong to the best outputs")
        return 0.0

    def _agree(self, actions: Array, expected: Array) -> Array:
        """Return for which observations ``[N]`` the same action is chosen; continuous ones are compared as outputs."""
        if not self._policy.chooses_numbers:
            return np.ones(len(actions), bool)
        agree: Array = (actions == expected).reshape(len(actions), -1).all(axis=1)
        return agree


def refuse_unplayed_actions(policy: GreedyPolicy, observations: Mapping[str, Observations]) -> None:
    """Raise ExportError if the exported ``policy`` acts differently from its evaluations.

    The Verifier compares the model with the exported form, so it would not see this. An agent of a package may mask
    actions when it plays, but not in its export.
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


def _batches(obs: Observations) -> Iterator[Observations]:
    start = 0
    sizes = iter(BATCH_SIZES)
    while start < len(obs):
        size = next(sizes, BATCH_SIZES[-1])
        yield obs[start : start + size]
        start += size


def _difference(name: str, source: str, computed: Array, expected: Array) -> float:
    """Return the largest difference of two arrays; raises ExportError if it is too large."""
    if computed.shape != expected.shape or computed.dtype != expected.dtype:
        raise _another_policy(name, source, f"{_form(computed)} instead of {_form(expected)}")
    difference = float(np.abs(computed.astype(np.float64) - expected).max())
    size = np.abs(expected).max(where=expected != np.float32(MASKED), initial=1.0)
    limit = TOLERANCE * float(size)
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

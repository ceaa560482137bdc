"""The only file that writes ONNX: a graph of torch becomes the bytes of a model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import nn

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

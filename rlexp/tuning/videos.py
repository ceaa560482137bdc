"""Videos of evaluation episodes; needs the extra ``[video]``."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rlexp.errors import UsageError
from rlexp.sample_batch import Array

if TYPE_CHECKING:
    from rlexp.agents.evaluation import EvaluationRequest

FOLDER = "videos"
"""In the trial's directory."""
BLOCK = 2
"""The codec takes widths and heights that are multiples of this."""


def require_video_extra(asked_by: str = "monitor: true") -> None:
    """Raise UsageError where the videos that ``asked_by`` asks for cannot be written."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError(f"{asked_by} writes videos, and imageio-ffmpeg is not installed", "pip install 'rlexp[video]'")


def film_checkpoint_to(directory: Path, checkpoint: Path, request: EvaluationRequest) -> Path:
    """Film an evaluation episode of ``checkpoint`` into ``directory``, which is made where missing; return the video.

    Raises UsageError where videos cannot be written or the env cannot be filmed, CheckpointError where
    there is no good checkpoint.
    """
    require_video_extra("--video")
    from rlexp.agents.evaluation import film_checkpoint  # imports torch

    checkpoint = checkpoint.resolve()
    video = directory / f"{checkpoint.parent.name}-{checkpoint.name}.mp4"
    write_video(video, *film_checkpoint(checkpoint, request))
    return video


def write_video(path: Path, pictures: Iterable[Array], fps: float) -> None:
    """Write pictures ``[H, W, 3]`` (uint8) as an mp4; the file appears whole, under its name, or not at all."""
    import imageio_ffmpeg

    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    with _closed(iter(pictures)) as remaining:
        first = next(remaining)
        height, width = (side - side % BLOCK for side in first.shape[:2])
        writer = imageio_ffmpeg.write_frames(
            str(unfinished), (width, height), fps=fps, macro_block_size=BLOCK, output_params=["-f", "mp4"]
        )
        writer.send(None)
        try:
            for picture in chain([first], remaining):
                writer.send(np.ascontiguousarray(picture[:height, :width]))
        except BaseException:
            writer.close()
            unfinished.unlink(missing_ok=True)
            raise
        writer.close()
    unfinished.replace(path)


@contextmanager
def _closed(pictures: Iterator[Array]) -> Iterator[Iterator[Array]]:
    """Close ``pictures`` at the end, if it is a generator: then what it films is closed too."""
    try:
        yield pictures
    finally:
        if isinstance(pictures, Generator):
            pictures.close()

"""Videos of evaluation episodes; needs the extra ``[video]``."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlexp.errors import UsageError
from rlexp.sample_batch import Array

FOLDER = "videos"
"""In the trial's directory."""
BLOCK = 2
"""The codec takes widths and heights that are multiples of this."""


def require_video_extra() -> None:
    """Raise UsageError where videos cannot be written."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError(
            "monitor: true writes videos, and imageio-ffmpeg is not installed", "pip install 'rlexp[video]'"
        )


def write_video(path: Path, pictures: Sequence[Array], fps: float) -> None:
    """Write pictures ``[H, W, 3]`` (uint8) as an mp4; the file appears whole, under its name, or not at all."""
    import imageio_ffmpeg

    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_name(f".{path.name}")
    height, width = (side - side % BLOCK for side in pictures[0].shape[:2])
    writer = imageio_ffmpeg.write_frames(
        str(unfinished), (width, height), fps=fps, macro_block_size=BLOCK, output_params=["-f", "mp4"]
    )
    writer.send(None)
    try:
        for picture in pictures:
            writer.send(np.ascontiguousarray(picture[:height, :width]))
    finally:
        writer.close()
    unfinished.replace(path)

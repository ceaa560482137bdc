"""Videos of evaluation episodes; needs the extra ``[video]``."""

from __future__ import annotations

import importlib.util
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np

from rlexp.errors import UsageError
from rlexp.files import refuse_other_than_file
from rlexp.sample_batch import Array

FOLDER = "videos"
"""In the trial's directory."""
BLOCK = 2
"""The codec takes widths and heights that are multiples of this."""


def require_video_extra(asked_by: str = "monitor: true") -> None:
    """Raise UsageError where the videos that ``asked_by`` asks for cannot be written."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise UsageError(f"{asked_by} writes videos, and imageio-ffmpeg is not installed", "pip install 'rlexp[video]'")


def write_video(path: Path, pictures: Iterable[Array], fps: float) -> None:
    """Write pictures ``[H, W, 3]`` (uint8) as an mp4; the file appears whole, under its name, or not at all."""
    import imageio_ffmpeg

    path.parent.mkdir(parents=True, exist_ok=True)
    refuse_other_than_file(path)
    unfinished = path.with_name(f".{path.name}")
    unfinished.unlink(missing_ok=True)  # the encoder would write through a link
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

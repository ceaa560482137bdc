"""What convolutions leave of an image: known before any is made, so that filters that do not fit are refused early."""

from __future__ import annotations

from collections.abc import Sequence

from rlexp.config.keys.structured_fields import ConvFilter


def sides_before_last(height: int, width: int, filters: Sequence[ConvFilter]) -> tuple[int, int]:
    """Return height and width of what the last of ``filters`` sees: all before it pad, so a stride s leaves 1/s.

    >>> sides_before_last(84, 84, ((16, (8, 8), 4), (32, (4, 4), 2), (256, (11, 11), 1)))
    (11, 11)
    """
    for _, _, stride in filters[:-1]:
        height, width = -(-height // stride), -(-width // stride)
    return height, width


def misfit(height: int, width: int, filters: Sequence[ConvFilter]) -> tuple[str, str] | None:
    """Return why ``filters`` do not fit images of a size, and what to do; None where they do."""
    kernel, left = filters[-1][1], sides_before_last(height, width, filters)
    if kernel[0] <= left[0] and kernel[1] <= left[1]:
        return None
    message = (
        f"model.conv_filters do not fit images of {height}x{width} pixels: the last kernel is "
        f"{kernel[0]}x{kernel[1]}, but the output of the layers before it is {left[0]}x{left[1]}"
    )
    return message, f"make the last kernel [{left[0]}, {left[1]}] or smaller, or leave conv_filters out"

"""Weights are halved for actors where every value can be, and are float32 again when they are received."""

import numpy as np

from rlexp.board.messages.payloads import WeightPrecision, widened
from rlexp.policy import Weights


def test_float32_weights_are_sent_as_they_are() -> None:
    weights = {"w": np.array([1e30, 1.0], np.float32)}
    assert WeightPrecision("float32").rounded(weights) is weights


def test_float16_halves_float32_arrays_only() -> None:
    weights: Weights = {"w": np.array([1.0, 1 / 3], np.float32), "steps": np.array([7], np.int64)}
    rounded = WeightPrecision("float16").rounded(weights)
    assert {name: array.dtype.name for name, array in rounded.items()} == {"w": "float16", "steps": "int64"}
    received = widened(rounded)
    assert received["w"].dtype == np.float32
    np.testing.assert_allclose(received["w"], weights["w"], rtol=2**-11)


def test_array_beyond_float16_stays_float32_and_is_named_once() -> None:
    precision = WeightPrecision("float16")
    large, fine = np.array([65520.0, 1.0], np.float32), np.array([65504.0], np.float32)
    for _ in range(2):
        rounded = precision.rounded({"large": large, "fine": fine})
        assert rounded["large"] is large
        assert rounded["fine"].tolist() == [65504.0]
    (event,) = precision.drain_events()
    assert event.startswith("weights large are sent")
    assert precision.drain_events() == []


def test_weights_that_are_not_finite_stay_so() -> None:
    """The actors refuse them; rounding must not hide that."""
    rounded = WeightPrecision("float16").rounded({"w": np.array([np.nan, np.inf], np.float32)})
    assert not np.isfinite(rounded["w"]).any()

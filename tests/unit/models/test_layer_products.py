"""Products by torch and by NumPy are the same, of layers on both sides of the limit between them."""

from typing import Any

import numpy as np
import pytest

from rlexp.models.dense_gradients import MIN_WEIGHTS_FOR_TORCH, LayerProducts, NumpyProducts, TorchProducts, products_of

Array = np.ndarray[Any, Any]
Shape = tuple[int, int, int]
Kind = type[NumpyProducts] | type[TorchProducts]
SHAPES = [(64, 256, 256), (32, 300, 60), (1, 128, 128), (5, 3, 2)]
"""Rows, inputs and outputs."""


def layer_of(shape: Shape, kind: Kind) -> tuple[LayerProducts, Array, Array]:
    """Return products with their weights, the same for both kinds, and where they write the gradient."""
    _, fan_in, fan_out = shape
    weight = np.random.default_rng(1).normal(size=(fan_out, fan_in)).astype(np.float32)
    weight_gradient = np.full_like(weight, 7.0)  # nothing of it may be left
    return kind(weight, weight_gradient), weight, weight_gradient


def rows_of(shape: Shape) -> tuple[Array, Array]:
    """Return ``x [B, fan_in]`` and a gradient ``[B, fan_out]``."""
    rng, (rows, fan_in, fan_out) = np.random.default_rng(2), shape
    x, gradient = (rng.normal(size=(rows, width)).astype(np.float32) for width in (fan_in, fan_out))
    return x, gradient


def assert_close(found: Array, expected: Array) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [NumpyProducts, TorchProducts])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_double_precision(shape: Shape, kind: Kind) -> None:
    products, weight, weight_gradient = layer_of(shape, kind)
    x, gradient = rows_of(shape)
    exact = weight.astype(np.float64)
    assert_close(products.outputs(x), x @ exact.T)
    assert_close(products.input_gradient(gradient), gradient @ exact)
    products.write_weight_gradient(x, gradient)
    assert_close(weight_gradient, gradient.T.astype(np.float64) @ x)


@pytest.mark.parametrize("kind", [NumpyProducts, TorchProducts])
def test_products_follow_weights_that_change_where_they_are(kind: Kind) -> None:
    products, weight, _ = layer_of(SHAPES[0], kind)
    x, gradient = rows_of(SHAPES[0])
    outputs, input_gradient = products.outputs(x), products.input_gradient(gradient)
    weight *= 2
    np.testing.assert_array_equal(products.outputs(x), 2 * outputs)
    np.testing.assert_array_equal(products.input_gradient(gradient), 2 * input_gradient)


@pytest.mark.parametrize("kind", [NumpyProducts, TorchProducts])
def test_rows_that_cannot_be_written_to_are_read_without_a_warning(kind: Kind) -> None:
    products, _, weight_gradient = layer_of(SHAPES[0], kind)
    x, gradient = rows_of(SHAPES[0])
    outputs = products.outputs(x)
    products.write_weight_gradient(x, gradient)
    expected = weight_gradient.copy()
    x.flags.writeable = False
    np.testing.assert_array_equal(products.outputs(x), outputs)
    products.write_weight_gradient(x, gradient)
    np.testing.assert_array_equal(weight_gradient, expected)


def test_torch_multiplies_from_the_limit_on() -> None:
    fan_out = MIN_WEIGHTS_FOR_TORCH // 64
    large, small = np.zeros((fan_out, 64), np.float32), np.zeros((fan_out - 1, 64), np.float32)
    assert isinstance(products_of(large, np.zeros_like(large)), TorchProducts)
    assert isinstance(products_of(small, np.zeros_like(small)), NumpyProducts)

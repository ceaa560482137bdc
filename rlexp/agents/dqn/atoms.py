"""Categorical distributions of returns in NumPy, as ``loss.py`` has them in torch: for small networks."""

from __future__ import annotations

import numpy as np

from rlexp.models.network_config import HeadConfig
from rlexp.sample_batch import Array


class Atoms:
    """The values on which the distributions of one network lie; everything is float32."""

    support: Array
    """``[K]``, evenly spaced."""

    def __init__(self, head: HeadConfig) -> None:
        self.support = np.linspace(head.v_min, head.v_max, head.num_atoms, dtype=np.float32)
        self._last = np.float32(head.num_atoms - 1)
        self._lowest = np.float32(head.v_min)
        self._per_value = np.float32((head.num_atoms - 1) / (head.v_max - head.v_min)) if head.num_atoms > 1 else 0

    def values(self, probabilities: Array) -> Array:
        """Return the means ``[...]`` of distributions ``[..., K]``."""
        # As one matrix: of a stack of small ones, NumPy would multiply each by itself.
        values: Array = probabilities.reshape(-1, len(self.support)) @ self.support
        return values.reshape(probabilities.shape[:-1])

    def projected(self, p_t: Array, r_t: Array, discount_t: Array) -> Array:
        """Return the distributions of ``r_t + discount_t z``, z ~ ``p_t [B, K]``, laid onto the support: ``[B, K]``.

        Each shifted atom gives its probability to its two neighbours on the support (Bellemare et al. 2017, eq. 7).
        """
        position = r_t[:, None] + discount_t[:, None] * self.support
        position -= self._lowest
        position *= self._per_value
        position = np.fmin(np.fmax(position, 0), self._last)  # which leave no NaN, that would be no index
        lower = np.minimum(np.floor(position), self._last - 1)
        position -= lower
        upper_share = position * p_t
        slots = lower.astype(np.intp)
        slots += np.arange(0, p_t.size, p_t.shape[1])[:, None]
        flat = slots.ravel()
        projected = np.bincount(flat, (p_t - upper_share).ravel(), p_t.size)
        flat += 1
        projected += np.bincount(flat, upper_share.ravel(), p_t.size)
        return projected.astype(np.float32).reshape(p_t.shape)

    def cross_entropies(self, logits_tm1: Array, a_tm1: Array, r_t: Array, discount_t: Array, logits_t: Array) -> Array:
        """Return the cross-entropy ``[B]`` between each row's projected target distribution and the predicted one.

        ``logits_* [B, A, K]``; the next action is the best one by ``logits_t`` themselves.
        """
        rows = np.arange(len(a_tm1))
        p_t = softmax(logits_t)
        chosen = p_t[rows, self.values(p_t).argmax(axis=1)]
        target = self.projected(chosen, r_t, discount_t)
        return cross_entropies(target, log_softmax(logits_tm1[rows, a_tm1]))


def shifted_exponentials(logits: Array) -> tuple[Array, Array, Array]:
    """Return ``logits [..., K]`` less the largest of each row, their exponentials, and the sums ``[..., 1]`` of those.

    Quotients of the exponentials and their sums are the softmax, shifted logits less the logarithms of the sums are its
    logarithm.
    """
    shifted = logits - np.maximum.reduce(logits, axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return shifted, exponentials, np.add.reduce(exponentials, axis=-1, keepdims=True)


def softmax(logits: Array) -> Array:
    """Return the probabilities ``[..., K]`` of ``logits [..., K]``."""
    _, exponentials, sums = shifted_exponentials(logits)
    return np.asarray(exponentials / sums)


def log_softmax(logits: Array) -> Array:
    """Return the logarithms ``[..., K]`` of the probabilities of ``logits [..., K]``."""
    shifted, _, sums = shifted_exponentials(logits)
    return np.asarray(shifted - np.log(sums))


def cross_entropies(target: Array, log_p: Array) -> Array:
    """Return ``-sum target log p`` ``[B]`` of distributions ``[B, K]``."""
    entropies: Array = -np.einsum("bk,bk->b", target, log_p)
    return entropies

"""The same decode steps in float64 numpy, fed with the device's tokens: what the kernel is checked against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Model
from .weights import ROTARY_BASE

F64 = NDArray[np.float64]
NORM_EPSILON = 1e-5


def logits(
    model: Model, weights: dict[str, NDArray[Any]], request: NDArray[Any], position: NDArray[Any], token: NDArray[Any]
) -> Iterator[F64]:
    """For each step the logits [slots, vocab] of a plan; rows of empty slots are NaN.

    request, position, token: [steps, slots].
    """
    m = model
    w = {name: np.asarray(value, np.float64) for name, value in weights.items()}
    keys: dict[int, F64] = {}
    values: dict[int, F64] = {}
    group, hd = m.heads // m.kv_heads, m.head_dim
    for step in range(len(request)):
        slots = np.nonzero(request[step])[0]
        at, who = position[step, slots].astype(int), request[step, slots].tolist()
        for generation in who:
            if generation not in keys:
                shape = (m.layers, m.context, m.kv_heads, hd)
                keys[generation], values[generation] = np.zeros(shape), np.zeros(shape)
        residual = w["embedding"][token[step, slots]]
        for layer in range(m.layers):
            x = _norm(residual, w["norms"][2 * layer])
            qkv = (x @ w["w_qkv"][layer].T).reshape(len(slots), -1, hd)
            q = _rotate(qkv[:, : m.heads], at)
            k = _rotate(qkv[:, m.heads : m.heads + m.kv_heads], at)
            v = qkv[:, m.heads + m.kv_heads :]
            mixed = np.empty((len(slots), m.heads, hd))
            for i, generation in enumerate(who):
                keys[generation][layer, at[i]], values[generation][layer, at[i]] = k[i], v[i]
                seen = slice(0, at[i] + 1)
                past_k = np.repeat(keys[generation][layer, seen], group, axis=1)
                past_v = np.repeat(values[generation][layer, seen], group, axis=1)
                score = np.einsum("hd,phd->hp", q[i], past_k) / np.sqrt(hd)
                weight = np.exp(score - score.max(axis=1, keepdims=True))
                weight /= weight.sum(axis=1, keepdims=True)
                mixed[i] = np.einsum("hp,phd->hd", weight, past_v)
            residual = residual + mixed.reshape(len(slots), -1) @ w["w_o"][layer].T
            x = _norm(residual, w["norms"][2 * layer + 1])
            gate, up = x @ w["w_gate"][layer].T, x @ w["w_up"][layer].T
            residual = residual + (gate / (1 + np.exp(-gate)) * up) @ w["w_down"][layer].T
        out = np.full((request.shape[1], m.vocab), np.nan)
        out[slots] = _norm(residual, w["norms"][2 * m.layers]) @ w["w_head"].T
        yield out


def _norm(x: F64, weight: F64) -> F64:
    rms: F64 = np.sqrt((x * x).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return x / rms * weight


def _rotate(x: F64, position: NDArray[Any]) -> F64:
    """[slots, heads, head_dim], halves rotated against each other."""
    half = x.shape[-1] // 2
    angle = (position[:, None] / ROTARY_BASE ** (np.arange(half) / half))[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)

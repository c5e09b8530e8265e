"""The same decode steps in float64 numpy, fed with the device's tokens: what the kernel is checked against.

It computes the whole model: on how many ranks the kernel ran makes no difference to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Model
from .weights import ROTARY_BASE

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
NORM_EPSILON = 1e-5
ROUTING_MARGIN = 1e-4
"""Router logits (which are of unit scale) closer than this may be put in either order by float32."""


class Misrouted(ValueError):
    """The device chose an expert that float64 rules out."""


@dataclass
class Routing:
    """The device's choice of experts, held against float64's at every step, layer and slot.

    A choice is a discontinuity: where two experts are nearly tied, float32 may take the other one, and all that follows
    in that slot differs without anything being wrong. So the reference goes on with what the device chose, if every
    expert that it took lies within ROUTING_MARGIN of every one that it left. Otherwise it raises Misrouted.
    """

    chosen: NDArray[Any]
    """[steps, layers, slots, top_k] experts"""
    skewed: int = -1
    """an expert that a fault control puts first now and then, whatever its score: only the others are held to theirs"""
    near: int = 0
    """choices so far in which the device, within the margin, took other experts than float64 would have"""

    def take(self, step: int, layer: int, slots: I64, score: F64) -> I64:
        """[slots, top_k] what the device chose. score: [slots, experts] router logits. Raises Misrouted."""
        took: I64 = self.chosen[step, layer, slots].astype(np.int64)
        for i, mine in enumerate(took):
            where = f"step {step}, layer {layer}, slot {slots[i]}"
            if mine.max() >= score.shape[1] or len(set(mine.tolist())) < len(mine):
                raise Misrouted(f"{where}: {mine.tolist()} are no different experts of {score.shape[1]}")
            best_left = np.delete(score[i], mine).max(initial=-np.inf)
            short = float(best_left - score[i, mine[mine != self.skewed]].min(initial=np.inf))
            if short > ROUTING_MARGIN:
                raise Misrouted(f"{where}: of {mine.tolist()} one lies {short:.2e} below one left")
            self.near += short > 0
        return took


def logits(
    model: Model,
    weights: dict[str, NDArray[Any]],
    request: NDArray[Any],
    position: NDArray[Any],
    token: NDArray[Any],
    routing: Routing | None = None,
) -> Iterator[F64]:
    """For each step the logits [slots, vocab] of a plan; rows of empty slots are NaN.

    request, position, token: [steps, slots]. routing: the device's, without which the choice is float64's own.
    Raises Misrouted for a routing that float64 rules out.
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
            if not m.experts:
                residual = residual + _gated(x, w["w_gate"][layer], w["w_up"][layer], w["w_down"][layer])
                continue
            score = x @ w["w_router"][layer].T
            taken = routing.take(step, layer, slots, score) if routing else best_experts(score, m.top_k)
            share = expert_weights(score, taken)
            for expert in np.unique(taken):
                row, which = np.nonzero(taken == expert)
                out = _gated(x[row], *(w[name][layer, expert] for name in ("w_gate", "w_up", "w_down")))
                residual[row] += share[row, which, None] * out
        final = np.full((request.shape[1], m.vocab), np.nan)
        final[slots] = _norm(residual, w["norms"][2 * m.layers]) @ w["w_head"].T
        yield final


def best_experts(score: F64, top_k: int) -> I64:
    """[slots, top_k] experts of the highest router logits [slots, experts]; of equal ones the lower."""
    return np.argsort(-score, axis=1, kind="stable")[:, :top_k]


def expert_weights(score: F64, chosen: I64) -> F64:
    """[slots, top_k] softmax of the router logits, renormalised over the chosen: the others' share cancels."""
    picked = np.take_along_axis(score, chosen, axis=1)
    weight = np.exp(picked - picked.max(axis=1, keepdims=True))
    share: F64 = weight / weight.sum(axis=1, keepdims=True)
    return share


def _gated(x: F64, gate: F64, up: F64, down: F64) -> F64:
    g = x @ gate.T
    out: F64 = (g / (1 + np.exp(-g)) * (x @ up.T)) @ down.T
    return out


def _norm(x: F64, weight: F64) -> F64:
    rms: F64 = np.sqrt((x * x).mean(axis=-1, keepdims=True) + NORM_EPSILON)
    return x / rms * weight


def _rotate(x: F64, position: NDArray[Any]) -> F64:
    """[slots, heads, head_dim], halves rotated against each other."""
    half = x.shape[-1] // 2
    angle = (position[:, None] / ROTARY_BASE ** (np.arange(half) / half))[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1)

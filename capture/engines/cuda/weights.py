"""The model's weights: random, seeded, scaled so that activations keep their size; a rank's shard of them; the rotary
table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Model

ROTARY_BASE = 10_000.0
SHARDED = ("w_qkv", "w_o", "w_gate", "w_up", "w_down", "w_head")
"""Weights of which a rank holds a part. It holds all of the others."""


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Weights of the whole model by the name of their parameter, each [.., output, input].

    With experts the gated MLP's three have a dimension for them after the layer's.
    """
    m, attended = model, model.heads * model.head_dim
    each: tuple[int, ...] = (m.layers, m.experts) if m.experts else (m.layers,)
    out: dict[str, tuple[int, ...]] = {
        "embedding": (m.vocab, m.d_model),
        "norms": (2 * m.layers + 1, m.d_model),
        "w_qkv": (m.layers, attended + 2 * m.kv_heads * m.head_dim, m.d_model),
        "w_o": (m.layers, m.d_model, attended),
        "w_gate": (*each, m.ffn, m.d_model),
        "w_up": (*each, m.ffn, m.d_model),
        "w_down": (*each, m.d_model, m.ffn),
        "w_head": (m.vocab, m.d_model),
    }
    return out | ({"w_router": (m.layers, m.experts, m.d_model)} if m.experts else {})


def rotary(model: Model) -> NDArray[np.float32]:
    """[context, head_dim / 2, 2] cosine and sine of each position's angles."""
    half = model.head_dim // 2
    angle = np.arange(model.context)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


def draw(model: Model, seed: int, random: Any) -> dict[str, Any]:
    """Weights by name, float32. `random` is numpy.random or cupy.random: the values differ between the two.

    They do not depend on the number of ranks: sharding a model does not change what it computes.
    """
    generator = random.default_rng(seed)
    out: dict[str, Any] = {}
    for name, shape in shapes(model).items():
        values = generator.standard_normal(shape, dtype=np.float32)
        if name == "norms":
            out[name] = 1 + values * np.float32(0.1)
        elif name == "embedding":
            out[name] = values
        else:
            out[name] = values * np.float32(shape[-1] ** -0.5)
    return out


def shard(model: Model, name: str, value: Any, rank: int, library: Any) -> Any:
    """A rank's part of one of the SHARDED weights, contiguous. library: numpy or cupy, whose array `value` is.

    Its attention heads' rows of w_qkv (queries, then keys, then values) and columns of w_o; its MLP columns, or its
    experts whole; its rows of the output head. With one rank the weight itself.
    """
    if model.ranks == 1:
        return value
    m, hd = model, model.head_dim

    def part(size: int) -> slice:
        return slice(rank * (size // m.ranks), (rank + 1) * (size // m.ranks))

    if name == "w_qkv":
        queries, keys = m.heads * hd, m.kv_heads * hd
        pieces = value[:, :queries], value[:, queries : queries + keys], value[:, queries + keys :]
        return library.concatenate([piece[:, part(piece.shape[1])] for piece in pieces], axis=1)
    if name == "w_o":
        value = value[:, :, part(m.heads * hd)]
    elif name == "w_head":
        value = value[part(m.vocab)]
    elif m.experts:
        value = value[:, part(m.experts)]
    elif name == "w_down":
        value = value[:, :, part(m.ffn)]
    else:
        value = value[:, part(m.ffn)]
    return library.ascontiguousarray(value)

"""The model's weights: random, seeded, scaled so that activations keep their size; and the rotary table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Model

ROTARY_BASE = 10_000.0


def shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Weights by the name of their parameter, each [.., output, input]."""
    m, attended = model, model.heads * model.head_dim
    return {
        "embedding": (m.vocab, m.d_model),
        "norms": (2 * m.layers + 1, m.d_model),
        "w_qkv": (m.layers, m.qkv_columns, m.d_model),
        "w_o": (m.layers, m.d_model, attended),
        "w_gate": (m.layers, m.ffn, m.d_model),
        "w_up": (m.layers, m.ffn, m.d_model),
        "w_down": (m.layers, m.d_model, m.ffn),
        "w_head": (m.vocab, m.d_model),
    }


def rotary(model: Model) -> NDArray[np.float32]:
    """[context, head_dim / 2, 2] cosine and sine of each position's angles."""
    half = model.head_dim // 2
    angle = np.arange(model.context)[:, None] / ROTARY_BASE ** (np.arange(half) / half)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


def draw(model: Model, seed: int, random: Any) -> dict[str, Any]:
    """Weights by name, float32. `random` is numpy.random or cupy.random: the values differ between the two."""
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

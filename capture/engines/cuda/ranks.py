"""What each rank has for itself: its shard of the weights, its activations, its cache, its inbox."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..model import Model
from . import weights
from .parameters import SHARD

POISONED = (
    "qkv", "heads_out", "partial", "act", "logits", "expert_out", "route", "route_weight", "kept_routes", "best",
    "inbox",
)  # fmt: skip
"""Outputs, which a launch finds filled with NaN, or with numbers that are no expert's."""
CLEARED = ("flags", "received")


class Ranks:
    """The memory of a model's ranks on one device, and the table of pointers by which they find each other's inboxes.

    whole: all weights by name. steps: of a launch. keep_routes: whether the choice of experts is kept at every step.
    run: address of the launch's words.
    """

    def __init__(
        self,
        cupy: Any,
        model: Model,
        whole: dict[str, Any],
        *,
        cache_rows: int,
        steps: int,
        keep_routes: bool,
        run: int,
    ) -> None:
        self._model, self._steps = model, steps
        sizes = _sizes(model, cache_rows, steps, keep_routes)
        self._memory: list[dict[str, Any]] = []
        table = np.zeros(model.ranks, SHARD)
        for rank in range(model.ranks):
            own = {name: cupy.zeros(count, kind) for name, (count, kind) in sizes.items() if count}
            own |= {name: weights.shard(model, name, whole[name], rank, cupy) for name in weights.SHARDED}
            self._memory.append(own)
            for name, array in own.items():
                table[rank][name] = array.data.ptr
            table[rank]["run"], table[rank]["rank"] = run, rank
        self._table = cupy.asarray(table.view(np.uint8))

    @property
    def pointer(self) -> int:
        """Address of the table, [ranks] of `struct Shard`."""
        return int(self._table.data.ptr)

    def reset(self, stream: Any) -> None:
        """Before a launch: nothing sent, nothing computed."""
        for own in self._memory:
            for names, byte in ((POISONED, 0xFF), (CLEARED, 0)):
                for name in names:
                    if name in own:
                        own[name].data.memset_async(byte, own[name].nbytes, stream)

    def used_tokens(self, rank: int) -> NDArray[np.uint32]:
        """[steps, slots] input tokens of the last launch, as a rank chose them."""
        used: NDArray[np.uint32] = self._memory[rank]["used_token"].get()
        return used.reshape(self._steps, -1)

    def routes(self, rank: int) -> NDArray[np.uint32]:
        """[steps, layers, slots, top_k] experts of the last launch, as a rank chose them. Of empty slots: anything."""
        m, kept = self._model, self._memory[rank]["kept_routes"].get()
        routes: NDArray[np.uint32] = kept.reshape(self._steps, m.layers, m.slots, m.top_k)
        return routes


def _sizes(m: Model, cache_rows: int, steps: int, keep_routes: bool) -> dict[str, tuple[int, Any]]:
    """Elements and type of what a rank has, by the name of its pointer; 0 elements: it has none."""
    rows = m.slots * (m.top_k if m.experts else 1)
    cached = m.layers * cache_rows * m.local_kv_heads * m.context * m.head_dim
    several, routed = m.ranks > 1, m.slots * m.top_k if m.experts else 0
    return {
        "residual": (m.slots * m.d_model, np.float32),
        "x": (m.slots * m.d_model, np.float32),
        "qkv": (m.slots * m.qkv_columns, np.float32),
        "heads_out": (m.slots * m.local_heads * m.head_dim, np.float32),
        "partial": (m.slots * m.d_model, np.float32),
        "act": (rows * m.local_ffn, np.float32),
        "logits": (m.slots * (m.vocab // m.ranks), np.float32),
        "expert_out": (routed * m.d_model, np.float32),
        "route": (routed, np.uint32),
        "route_weight": (routed, np.float32),
        "kept_routes": (routed * steps * m.layers * keep_routes, np.uint32),
        "keys": (cached, np.float32),
        "values": (cached, np.float32),
        "token": (cache_rows, np.uint32),
        "used_token": (steps * m.slots, np.uint32),
        "best": (several * m.slots * 2, np.uint32),
        "inbox": (several * 2 * m.ranks * m.slots * m.d_model, np.float32),
        "flags": (several * 2 * m.ranks, np.uint64),
        "received": (several * 1, np.uint32),
    }

"""The sizes of a transformer and of its deployment, checked: what the task graph is built from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ...store.errors import Usage
from ...store.tables import PEER_ALL

MAX_SLOTS = 4096
MAX_TILES = 0xFFFF
MAX_RANKS = 64


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer with grouped-query attention, served with `slots` request slots over `ranks` devices.

    Tensor-parallel: every rank holds heads / ranks attention heads, ffn / ranks columns of a dense MLP (or
    experts / ranks whole experts), and vocab / ranks columns of the output head. Widths are in elements, tiles in
    output columns; a last tile may be narrower. `experts` = 0 is a dense model; with experts, `ffn` is one's width.

    Raises Usage for sizes that do not fit each other.
    """

    layers: int = 4
    d_model: int = 1024
    heads: int = 16
    kv_heads: int = 4
    head_dim: int = 64
    ffn: int = 4096
    experts: int = 0
    top_k: int = 2
    vocab: int = 8192
    slots: int = 8
    context: int = 1024
    ranks: int = 1
    qkv_tile: int = 128
    out_tile: int = 64
    ffn_tile: int = 128
    vocab_tile: int = 256

    def __post_init__(self) -> None:
        for f in fields(self):
            value: Any = getattr(self, f.name)
            least = 0 if f.name == "experts" else 1
            self._need(isinstance(value, int) and value >= least, f"{f.name}={value} must be at least {least}")
            self._need(value <= 1 << 24, f"{f.name}={value} is above {1 << 24}")
        self._need(self.slots <= MAX_SLOTS, f"slots={self.slots} is above {MAX_SLOTS}")
        self._need(self.ranks <= min(MAX_RANKS, PEER_ALL), f"ranks={self.ranks} is above {MAX_RANKS}")
        self._need(self.layers <= 1000, f"layers={self.layers} is above 1000")
        self._need(self.heads % self.kv_heads == 0, f"heads={self.heads} is no multiple of kv_heads={self.kv_heads}")
        for name in ("heads", "kv_heads", "vocab") + (("experts",) if self.experts else ("ffn",)):
            size = getattr(self, name)
            self._need(size % self.ranks == 0, f"{name}={size} cannot be shared by ranks={self.ranks}")
        if self.experts:
            self._need(self.top_k <= self.experts, f"top_k={self.top_k} is above experts={self.experts}")
        self._need(self.heads <= MAX_TILES and self.experts <= MAX_TILES, "heads and experts must be below 65536")
        for width, tile in (
            (self.qkv_columns, self.qkv_tile),
            (self.d_model, self.out_tile),
            (self.ffn, self.ffn_tile),
            (self.vocab // self.ranks, self.vocab_tile),
        ):
            self._need(
                tiles(width, tile) <= MAX_TILES, f"{width} columns in tiles of {tile} are above {MAX_TILES} tiles"
            )

    @staticmethod
    def _need(holds: bool, why: str) -> None:
        if not holds:
            raise Usage("cannot build the model", why, "change that size")

    @property
    def local_heads(self) -> int:
        """Attention heads of one rank."""
        return self.heads // self.ranks

    @property
    def local_kv_heads(self) -> int:
        """Key and value heads of one rank."""
        return self.kv_heads // self.ranks

    @property
    def qkv_columns(self) -> int:
        """Output columns of one rank's QKV projection: queries of its heads, then keys, then values."""
        return (self.local_heads + 2 * self.local_kv_heads) * self.head_dim

    @property
    def local_ffn(self) -> int:
        """MLP columns of one rank; with experts, of one expert (experts are not split)."""
        return self.ffn if self.experts else self.ffn // self.ranks

    @property
    def rounds(self) -> int:
        """Communication rounds of one iteration: two all-reduces a layer and one exchange of the best logits."""
        return 2 * self.layers + 1 if self.ranks > 1 else 0


def tiles(width: int, tile: int) -> int:
    """How many tiles of `tile` columns cover `width`."""
    return -(-width // tile)


def comm_generation(iteration: int, round_: int, rounds: int) -> int:
    """Identity of one communication round, derived alike on every rank: u32, never 0.

    `iteration * rounds + round_ + 1`, wrapping past 2^32 - 1 to 1.
    """
    return (iteration * rounds + round_) % 0xFFFF_FFFF + 1

"""The data, blocks and mixing matrix of the benchmarks' shapes, as the C++ programs make them."""

import numpy as np


def element(tensor, count):
    """The first elements of tensor 1 (q), 2 (k), 3 (v) or 4 (dout): float32, uniform in [-1, 1)."""
    out = np.empty(count, np.float32)
    piece = 1 << 22  # elements at a time, to bound memory
    for begin in range(0, count, piece):
        end = min(begin + piece, count)
        z = np.arange(begin, end, dtype=np.uint64) + np.uint64(tensor << 40)
        z *= np.uint64(0x9E3779B97F4A7C15)  # splitmix64 of a counter
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        out[begin:end] = (z >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - 1
    return out


class Shape:
    """Sizes of a shape, parsed from a case of the results."""

    def __init__(self, sizes):
        self.batch, self.heads = int(sizes["B"]), int(sizes["H"])
        self.width, self.values = int(sizes["D"]), int(sizes["E"])
        self.grid = tuple(map(int, sizes["grid"].split("x")))
        self.block = tuple(map(int, sizes["block"].split("x")))
        if any(n % w for n, w in zip(self.grid, self.block)):
            raise ValueError(f"blocks {self.block} do not divide the grid {self.grid}")
        self.block_grid = tuple(n // w for n, w in zip(self.grid, self.block))
        self.tokens = int(np.prod(self.grid))
        self.blocks = int(np.prod(self.block_grid))
        self.block_length = int(np.prod(self.block))

    def inputs(self):
        """q, k [B,N,H,D] and v [B,N,H,E]."""
        return self._draw(1, self.width), self._draw(2, self.width), self._draw(3, self.values)

    def dout(self):
        """The gradient of the output.   # [B,N,H,E]"""
        return self._draw(4, self.values)

    def _draw(self, tensor, width):
        lead = (self.batch, self.tokens, self.heads)
        return element(tensor, int(np.prod(lead)) * width).reshape(*lead, width)

    def block_of(self):
        """The block of every token in raster order.   # [N]"""
        places = np.unravel_index(np.arange(self.tokens), self.grid)
        return np.ravel_multi_index([p // w for p, w in zip(places, self.block)], self.block_grid)

    def mixing(self):
        """1 - distance / largest distance of the row, rows that sum to 1.   # [M,M] float32"""
        places = np.stack(np.unravel_index(np.arange(self.blocks), self.block_grid), 1)
        distance = np.linalg.norm(places[:, None] - places[None], axis=-1)
        weights = 1 - distance / np.maximum(distance.max(1, keepdims=True), 1e-300)
        return (weights / weights.sum(1, keepdims=True)).astype(np.float32)

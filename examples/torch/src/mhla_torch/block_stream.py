"""Block-causal attention step by step: frames of a video, chunks of a text, scales of an image.

    stream = mhla_torch.BlockStream(mixing, grid=(16, 16), block=(8, 8))   # of the tokens of a step
    state = stream.start()
    for frame in video:
        for level in levels:                       # a denoiser visits a frame several times
            out = stream.append(state, q, k, v)    # of [B,N,H,.], the N tokens of a step
            stream.roll_back(state)                # takes the visit back
        stream.append(state, q, k, v)              # what later frames read

Outputs and gradients are those of mhla_torch.block_causal on the tokens of all steps. A state has
sums of blocks, at least in float32, and no tokens. All is of PyTorch's operations, on any device.
"""

import torch

from mhla_torch import checks, formula
from mhla_torch.operators import autocast, without_autocast


class BlockState:
    """Steps of B sequences. torch.save writes it, and copy.copy makes an independent copy.

    steps: steps so far
    sums: of the last of them, summaries [B,H,n,D,E] and sums of keys [B,H,n,D] or None
    """

    def __init__(self, steps=0, sums=()):
        self.steps, self.sums = steps, tuple(sums)

    def select(self, sequences):
        """A new state of these sequences, in this order; a sequence may be there twice."""
        return BlockState(self.steps, [[t if t is None else t[sequences] for t in step]
                                       for step in self.sums])


_TENSORS = ("normalizer_q", "normalizer_k", "gate")
_EXCLUDED = ("prefix", "key_grid", "key_block", "key_prefix", "pattern", "backend", "save", "explain",
             "query_offsets", "key_offsets", "max_queries", "max_keys")


def _expect_options(name, options):
    for option in _EXCLUDED:
        if option in options:
            checks.fail(name, option, "is given", "none: a step is one sequence of the formula")


class BlockStream:
    """Appends steps of equal size to states.

    mixing: [M,M] of all steps; coefficients of later steps are not read
    grid, block: of the tokens of one step, as for mhla_torch.bidirectional
    reach: steps before its own that a step reads, which bounds a state; by default all
    options: of mhla_torch.bidirectional, without prefix, blocks of keys, pattern, backend, save and
        those of packed sequences
    """

    def __init__(self, mixing, *, grid=(), block, reach=None, **options):
        if reach is not None and reach < 0:
            checks.fail("BlockStream", "reach", f"is {reach}", "at least 0")
        _expect_options("BlockStream", options)
        self.mixing, self.grid, self.block = mixing, tuple(grid), tuple(block)
        self.reach, self.options = reach, options

    def start(self):
        """A state without a step."""
        return BlockState()

    def append(self, state, q, k, v, **options):
        """Appends the tokens of the next step. -> [B,N,H,E], in the layout of q

        options: of this call, such as key_mask. After an error the state is as before.
        """
        name = "BlockStream.append"

        def form(q, k, v, den, cross):
            checks.expect_causal(name, q, k, cross)
            piece, = formula.pieces(name, q, self.grid, self.block, 0)
            n, end = piece.blocks, (state.steps + 1) * piece.blocks
            matrix = checks.matrix(name, self.mixing, end, end, q)
            kept = state.sums[len(state.sums) - self._read(state.steps):]
            q, k, v, *others = (piece.cut(t) for t in (q, k, v, *(den or ())))
            denominator = None if den is None else others or (q, k)
            step = k.mT @ v, None if den is None else denominator[1].sum(-2)
            for summaries, key_sums in kept:
                checks.expect_shape(name, "summaries of the state", summaries, step[0].shape)
                if (key_sums is None) != (den is None):
                    checks.fail(name, "state", "was made with another normalizer", "the same")
            rows = matrix[..., end - n:, end - n * (len(kept) + 1):]
            mixtures = [formula.product(rows, torch.cat(sums, 2)) for sums in zip(*kept, step)
                        if sums[0] is not None]
            out = piece.join(q @ mixtures[0])
            sums = None if den is None else piece.join(denominator[0] @ mixtures[1][..., None])
            appended.append(step)
            return out, sums

        _expect_options(name, options)
        appended, options = [], self.options | options
        named = autocast({"q": q, "k": k, "v": v} | {
            argument: options.pop(argument) for argument in _TENSORS if argument in options})
        out = without_autocast(q, formula.attend, name, form, **named, **options)
        state.steps += 1
        state.sums = (*state.sums, *appended)[-1 - self._read(state.steps):]
        return out

    def roll_back(self, state):
        """Takes the last step back: the next append replaces it."""
        if not state.sums or len(state.sums) <= self._read(state.steps - 1):
            checks.fail("BlockStream.roll_back", "state",
                        f"has {state.steps} steps and the sums of {len(state.sums)}",
                        "a step that was appended since the last roll_back")
        state.steps -= 1
        state.sums = state.sums[:-1]

    def _read(self, steps):
        """Number of earlier steps that a step after so many steps reads."""
        return steps if self.reach is None else min(steps, self.reach)

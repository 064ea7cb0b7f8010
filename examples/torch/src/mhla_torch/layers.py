"""The authors' attention layers under the authors' parameter names, for load_state_dict.

Each layer maps x [B,N,C] to y [B,N,C]. `backend` is an option of mhla_torch's operators.
"""

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from mhla_torch import formula, kernels, operators
from mhla_torch.attention import decaying_terms, uniform_causal
from mhla_torch.decoding import LanguageState, StreamState
from mhla_torch.layer_parts import (Mixing, Rotary, angles, expect, expect_blocks, expect_heads,
                                    turns_by)


class Vision(nn.Module):
    """The layer of DiT and DeiT.

    grid, block: tokens of the image and of a block along [y, x]
    order: order of the tokens in x. "raster" goes along the rows of the image. "blocks" goes block
        by block, as in the authors' checkpoints, with blocks and their tokens in raster order.
    lepe: side of the convolution that is added to the output
    qk_norm: RMSNorm of q and k over all heads together
    """

    def __init__(self, channels, heads, grid, block, order=None, lepe=3, qk_norm=False,
                 qkv_bias=True, backend="auto"):
        super().__init__()
        expect_heads("Vision", channels, heads, 1)
        expect_blocks("Vision", 2, grid, "block", block)
        expect("Vision", order in ("raster", "blocks"), "order", order,
                '"raster", along the rows of the image, or "blocks", block after block')
        expect("Vision", lepe >= 1 and lepe % 2 == 1, "lepe", lepe, "an odd number")
        self.heads, self.grid, self.block, self.backend = heads, tuple(grid), tuple(block), backend
        self.order, self.counts = order, tuple(n // w for n, w in zip(grid, block))
        self.norm = nn.LayerNorm(channels)
        self.to_qkv = nn.Linear(channels, 3 * channels, bias=qkv_bias)
        self.q_norm = nn.RMSNorm(channels) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(channels) if qk_norm else nn.Identity()
        self.lepe = nn.Conv2d(channels, channels, lepe, padding=lepe // 2, groups=channels)
        self.piece_attn = Mixing(self.counts)
        self.to_out = nn.Sequential(nn.Linear(channels, channels))

    @torch.no_grad()
    def constrain_(self):
        """Clamps the mixing matrix to [0, 1]; call it after an update."""
        self.piece_attn.conv.weight.clamp_(0, 1)

    def local(self, v):
        """The convolution of the image that v [B,N,C] is.   # [B,N,C]"""
        if self.order == "raster":
            return self.lepe(v.mT.unflatten(2, self.grid)).flatten(2).mT
        image = v.unflatten(1, (*self.counts, *self.block)).permute(0, 5, 1, 3, 2, 4)
        out = self.lepe(image.flatten(4).flatten(2, 3))
        out = out.unflatten(3, (self.counts[1], -1)).unflatten(2, (self.counts[0], -1))
        return out.permute(0, 2, 4, 3, 5, 1).flatten(1, 4)

    def forward(self, x):
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        heads = (t.unflatten(-1, (self.heads, -1)) for t in (self.q_norm(q), self.k_norm(k), v))
        blocks = {"grid": self.grid, "block": self.block}
        if self.order == "blocks":
            blocks = {"block": (math.prod(self.block),)}
        out = operators.bidirectional(*heads, self.piece_attn.matrix(), **blocks,
                                      normalizer="cross_query", eps=1e-6, backend=self.backend)
        return self.to_out(out.flatten(2) + self.local(v))


class Video(Rotary):
    """The layer of Wan: raster order, a rotary embedding in the numerator, gated RMSNorm per head.

    grid: tokens along [frames, y, x]; layout: blocks along each axis
    lepe: adds a 3 x 3 x 3 convolution; normalize: divides by the sums of the released layer
    """

    def __init__(self, channels, heads, grid, layout, lepe=False, normalize=False, backend="auto"):
        super().__init__()
        expect_heads("Video", channels, heads, 2)
        expect_blocks("Video", 3, grid, "layout", layout)
        self.heads, self.grid, self.normalize = heads, tuple(grid), normalize
        self.backend = backend
        self.block = tuple(n // m for n, m in zip(grid, layout))
        for name in "qkvog":
            setattr(self, name, nn.Linear(channels, channels))
        self.norm_q, self.norm_k = (nn.RMSNorm(channels, eps=1e-6) for _ in range(2))
        self.g_norm = nn.RMSNorm(channels // heads, eps=1e-6)
        self.block_attn = Mixing(layout)
        self.lepe = nn.Conv3d(channels, channels, 3, padding=1, groups=channels) if lepe else None
        self.place_turns()

    def angles(self):
        """Of all tokens; the axes share the pairs of channels.   # [N,pairs]"""
        pairs = self.g_norm.normalized_shape[0] // 2
        narrow = pairs // 3
        places = torch.meshgrid(*(torch.arange(n) for n in self.grid), indexing="ij")
        widths = (pairs - 2 * narrow, narrow, narrow)
        return torch.cat([angles(p.flatten(), w) for p, w in zip(places, widths)], 1)

    def forward(self, x):
        tensors = self.norm_q(self.q(x)), self.norm_k(self.k(x)), self.v(x), self.g(x)
        q, k, v, gate = (t.unflatten(-1, (self.heads, -1)) for t in tensors)
        out = operators.bidirectional(q, k, v, self.block_attn.matrix(), grid=self.grid,
                                      block=self.block, query_angles=self.turns,
                                      key_angles=self.turns, gain=self.g_norm.weight, gate=gate,
                                      norm_eps=self.g_norm.eps, eps=1e-6, backend=self.backend,
                                      normalizer="cross_query" if self.normalize else "none")
        out = out.flatten(2)
        if self.lepe is not None:
            clip = v.flatten(2).transpose(1, 2).unflatten(2, self.grid)
            out = out + self.lepe(clip).flatten(2).transpose(1, 2)
        return self.o(out)


class Language(Rotary):
    """The language model's layer: rotary embedding after the feature map, gated RMSNorm per head.

    chunk, chunks: tokens of a block, and the largest number of blocks of a sequence
    decays: in place of chunks and the parameter mixing_matrix, the number R of decaying terms. The
        parameter `mixing` [2,R] then has weights and decays, and sequences have no largest length
    feature_map: "relu" or "elu"
    convolution: taps of the short convolutions of q, k and v, 0 for none

    layer(x) computes whole sequences. To decode, call state = layer.start(B), then
    layer.append(state, x) for the prompts and for each next token; decoding.py says more.
    """

    decays = 0

    def __init__(self, channels, heads, chunk, chunks=None, feature_map="relu", convolution=0,
                 backend="auto", decays=0):
        super().__init__()
        self.backend, self.decays = backend, decays
        expect("Language", (chunks is None) == (decays > 0), "chunks", chunks,
                "none, as decays is given" if decays else "a number, or decays")
        chunks = 0 if decays else chunks
        if feature_map not in ("relu", "elu"):
            raise ValueError(f'Language: feature_map is "{feature_map}", expected relu or elu')
        expect_heads("Language", channels, heads, 4)
        for argument, size, least in (("chunk", chunk, 1), ("chunks", chunks, int(not decays)),
                                      ("convolution", convolution, 0)):
            expect("Language", size >= least, argument, size, f"at least {least}")
        keys = channels // 2
        self.heads, self.chunk, self.chunks, self.taps = heads, chunk, chunks, convolution
        self.feature_map = {"relu": "relu", "elu": "elu_plus_one"}[feature_map]
        for name, width in (("q", keys), ("k", keys), ("v", channels), ("g", channels)):
            setattr(self, f"{name}_proj", nn.Linear(channels, width, bias=False))
            if convolution and name != "g":
                setattr(self, f"{name}_conv1d",
                        nn.Conv1d(width, width, convolution, groups=width, bias=False))
        self.o_proj = nn.Linear(channels, channels, bias=False)
        if decays:
            self.mixing = nn.Parameter(decaying_terms(decays))
        else:
            self.mixing_matrix = nn.Parameter(uniform_causal(chunks)[..., None, None, None, None])
        self.g_norm_swish_gate = nn.RMSNorm(channels // heads, eps=1e-5)
        self.place_turns()

    def angles(self):
        """Of all tokens, or of none if there is no largest number of them.   # [N,pairs]"""
        return angles(torch.arange(self.chunk * self.chunks), self.widths()[0] // 2)

    def turns_at(self, places):
        """The turns of tokens at these places.   # [..,D]"""
        if self.decays:
            return turns_by(angles(places, self.widths()[0] // 2)).to(self.turns.dtype)
        return self.turns[places.clamp(max=len(self.turns) - 1)]

    def turns_between(self, begin, end):
        """The turns of consecutive tokens.   # [end - begin,D]"""
        if self.decays:
            return self.turns_at(torch.arange(begin, end, device=self.turns.device))
        return self.turns[begin:end]

    def matrix(self):
        """The mixing matrix [M,M], or decaying terms [2,R]."""
        return self.mixing if self.decays else self.mixing_matrix[..., 0, 0, 0, 0]

    @torch.no_grad()
    def constrain_(self):
        """Clamps the mixing matrix to [1e-5, 1] and its lower triangle, or decaying terms to
        [0, 1]; call it after an update.
        """
        m = self.matrix()
        m.copy_(m.clamp(0, 1) if self.decays else m.clamp(1e-5, 1).tril())

    def project(self, x, inputs):
        """q, k [B,N,H,D] and v [B,N,H,E] of the tokens x, and the inputs of convolutions of later
        tokens. The features of q and k that rotate together, which are halves of a row in
        checkpoints, are adjacent.

        inputs: name: the last tokens before x that a convolution reads
        """
        later = {}

        def one(name):
            y = getattr(self, f"{name}_proj")(x)
            if self.taps:
                y = torch.cat([inputs[name], y], 1)
                later[name] = y[:, y.shape[1] - self.taps + 1:].clone()  # y is of all tokens
                y = functional.silu(getattr(self, f"{name}_conv1d")(y.transpose(1, 2)))
                y = y.transpose(1, 2)
            return y.unflatten(-1, (self.heads, -1))

        def in_pairs(y):
            return y.unflatten(-1, (2, -1)).mT.flatten(-2)

        return in_pairs(one("q")), in_pairs(one("k")), one("v").contiguous(), later

    def finish(self, out, x):
        """Norm, gate and output projection of out [B,N,H,E]."""
        out = self.g_norm_swish_gate(out).flatten(2)
        return self.o_proj(out * functional.silu(self.g_proj(x)))

    def expect_room(self, tokens):
        most = self.chunk * self.chunks
        if tokens > most and not self.decays:
            raise ValueError(f"Language: a sequence has {tokens} tokens, expected at most {most}")

    def forward(self, x):
        self.expect_room(x.shape[1])
        q, k, v, _ = self.project(x, self.no_inputs(x.shape[0]))
        norm, angles = self.g_norm_swish_gate, self.turns_between(0, x.shape[1])
        out = operators.causal(q, k, v, self.matrix(), block=self.chunk, decaying=self.decays > 0,
                               feature_map=self.feature_map, relu_eps=0., normalizer="none",
                               scale=q.shape[-1]**-0.5, query_angles=angles, key_angles=angles,
                               gain=norm.weight, norm_eps=norm.eps,
                               gate=self.g_proj(x).unflatten(-1, (self.heads, -1)),
                               backend=self.backend)
        return self.o_proj(out.flatten(2))

    def widths(self):
        """Features and values of a head."""
        return self.q_proj.out_features // self.heads, self.v_proj.out_features // self.heads

    def no_inputs(self, batch):
        """The inputs of convolutions before the first token."""
        return {name: self.o_proj.weight.new_zeros(batch, self.taps - 1,
                                                   getattr(self, f"{name}_proj").out_features)
                for name in "qkv"} if self.taps else {}

    def start(self, batch):
        """The state of sequences without tokens. On CUDA the kernels decode, if they take the
        layer's type, or that of autocast, and its widths.
        """
        weight, inputs = self.o_proj.weight, self.no_inputs(batch)
        if kernels.takes_streams("Language", self.backend, weight.device, self.projection_type(),
                                 self.widths(), self.decays):
            sizes = self.heads, *self.widths(), max(1, self.chunks), self.chunk, self.decays
            return StreamState(weight.new_empty(0, dtype=self.projection_type()), batch, sizes, inputs)
        weight, shape = weight.to(operators.sums_of(weight.dtype)), (self.heads, *self.widths())
        summaries = weight.new_zeros(self.decays or self.chunks, batch, *shape)
        return LanguageState([0] * batch, summaries,
                             *(weight.new_zeros(batch, *shape) for _ in range(2)), inputs,
                             (self.chunk, self.decays))

    def projection_type(self):
        """The type of q, k and v."""
        weight = self.o_proj.weight
        casts = weight.dtype is not torch.float64 and torch.is_autocast_enabled("cuda")
        return torch.get_autocast_dtype("cuda") if weight.is_cuda and casts else weight.dtype

    def append(self, state, x, sequences=None):
        """The outputs [n,N,C] of the next tokens x [n,N,C] of sequences of a state, in O(D E) per
        token and head, and O(M D E), or with decaying terms O(R D E), per chunk and head. By the
        formula, each group of sequences at one position also copies the open chunks of all B.

        sequences: n different numbers, a list or an int64 tensor, of sequences that may be at
            different positions; by default all
        """
        count = state.batch if sequences is None else len(sequences)
        expect("Language", x.shape[0] == count, "x", f"of {x.shape[0]} sequences", count)
        is_stream, on_device = (isinstance(state, StreamState),
                                isinstance(sequences, torch.Tensor))
        if on_device:
            state.numbers(sequences)  # checks its type
        if not (is_stream and on_device):  # which would wait for the device
            order = list(range(count) if sequences is None else
                         sequences.tolist() if on_device else sequences)
            fits = len(set(order)) == count and all(0 <= b < state.batch for b in order)
            expect("Language", fits, "sequences", order, f"different numbers below {state.batch}")
        if count == 0 or x.shape[1] == 0:
            return x
        if is_stream:
            return self.append_to_stream(state, x, sequences)
        groups = {}  # places in x of sequences with equally many tokens
        for i, b in enumerate(order):
            groups.setdefault(state.counts[b], []).append(i)
        self.expect_room(max(groups) + x.shape[1])
        before = copy.copy(state)
        before.counts = list(state.counts)
        try:
            return self.append_to_groups(state, x, order, groups)
        except BaseException:  # such as a lack of memory; appends replace tensors
            vars(state).update(vars(before))
            raise

    def append_to_groups(self, state, x, order, groups):
        """Outputs of the next tokens of sequences `order`, whose places in x have groups."""
        if len(groups) == 1 and order == list(range(state.batch)):
            return self.append_to_all(state, x)
        outputs = []
        for count, places in groups.items():
            numbers, summaries = [order[i] for i in places], state.summaries
            inside = 0 < count % self.chunk < self.chunk - x.shape[1]  # of a chunk: none is read
            state.summaries = summaries[:0] if inside else summaries
            part = state.select(numbers)
            outputs.append(self.append_to_all(part, x[places]))
            state.place(numbers, part)
            state.summaries = summaries if inside else state.summaries
        there = [i for places in groups.values() for i in places]
        return torch.cat(outputs)[sorted(range(len(order)), key=there.__getitem__)]

    def append_to_all(self, state, x):
        """Outputs of the next tokens of all sequences, which have equally many tokens."""
        outputs = []
        while x.shape[1] > 0:
            count = min(x.shape[1], self.chunk - state.counts[0] % self.chunk)
            outputs.append(self.append_to_chunk(state, x[:, :count]))
            x = x[:, count:]
        return torch.cat(outputs, 1)

    def append_to_chunk(self, state, x):
        """Outputs of tokens of one chunk; see append."""
        *tensors, state.inputs = self.project(x, state.inputs)
        tensors = (t.transpose(1, 2).to(state.open_summary.dtype) for t in tensors)  # [B,H,n,.]
        out = operators.without_autocast(x, self.sum_chunk, state, *tensors)
        return self.finish(out.transpose(1, 2).to(x.dtype), x)

    def sum_chunk(self, state, q, k, v):
        """Sums [B,H,n,E] of tokens of one chunk, in the type of the state's summaries."""
        position, count = state.counts[0], q.shape[2]
        i = position // self.chunk
        if self.decays:
            row, decays = self.mixing.to(q.dtype)
            before, own = (row, state.summaries), row.sum()
        else:
            row = self.matrix()[i].to(q.dtype)
            before, own = (row[:i], state.summaries[:i]), row[i]
        q, k = self.features(q, k, self.turns_between(position, position + count))
        q = q * q.shape[-1]**-0.5
        if position % self.chunk == 0:
            state.mixture = torch.tensordot(*before, 1)
        out = q @ (state.mixture + own * state.open_summary)
        out = out + own * (q @ k.transpose(-1, -2)).tril() @ v
        state.open_summary = state.open_summary + k.transpose(-1, -2) @ v
        position += count
        state.counts = [position] * state.batch
        if position % self.chunk == 0:
            if self.decays:
                sums = state.summaries + state.open_summary
                state.summaries = decays.view(-1, 1, 1, 1, 1) * sums
            else:
                at = torch.tensor([i], device=state.open_summary.device)
                state.summaries = state.summaries.index_copy(0, at, state.open_summary[None])
            state.open_summary = torch.zeros_like(state.open_summary)
        return out

    def features(self, q, k, angles):
        """Rotated features of q and k."""
        return (formula.rotate(formula.MAPS[self.feature_map](t), angles) for t in (q, k))

    def append_to_stream(self, state, x, sequences):
        """Outputs of tokens by the kernels for CUDA; see append."""
        recorded = (x, *self.parameters()) if torch.is_grad_enabled() else ()
        expect("Language", not any(t.requires_grad for t in recorded), "append",
                "called where gradients are recorded",
                'torch.no_grad() or torch.inference_mode(); backend="formula" has gradients')
        usable = torch.is_inference_mode_enabled() or not state.positions.is_inference()
        expect("Language", usable, "state", "of torch.inference_mode()", "a call under it, too")
        seen = state.seen_by(sequences, x.shape[1])
        self.expect_room(max(seen or [0]) + x.shape[1])
        at = None if sequences is None else state.numbers(sequences)
        places, inputs = state.positions, state.inputs
        if at is not None:
            places = places.index_select(0, at)
            inputs = {name: t.index_select(0, at) for name, t in inputs.items()}
        q, k, v, later = self.project(x, inputs)
        places = places[:, None] + torch.arange(x.shape[1], device=x.device)  # [n,N]
        angles = self.turns_at(places)[:, :, None]
        q, k = self.features(q.to(angles.dtype), k.to(angles.dtype), angles)
        out = state.attend(q, k, v, self.matrix(), sequences, at, seen, scale=q.shape[-1]**-0.5)
        state.advance(sequences, at, later, x.shape[1])
        return self.finish(out.to(x.dtype), x)

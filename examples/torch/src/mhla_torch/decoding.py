"""States of language layers that decode: B sequences, each at its own position.

    state = layer.start(B)
    layer.append(state, x)              # the next tokens of all sequences
    layer.append(state, x, [2, 0])      # those of two sequences
    state.restart([1])                  # sequence 1 begins again
    best = state.select([1, 1, 0])      # a new state of these sequences, in this order
    saved = state.clone()
    state.copy_(saved)                  # restores in place
    torch.save(state, file)             # then torch.load(file, weights_only=False) reads it

Numbers of sequences are a list, or an int64 tensor on the state's device. The size of a state does
not depend on the lengths of its sequences.
"""

import torch


class State:
    """Sequences of a layer. Each kind of state has tensors(), [(tensor, axis of sequences)], and
    set(), which gives them other values. counts: tokens of each sequence, or None
    """

    @property
    def batch(self):
        tensor, axis = self.tensors()[0]
        return tensor.shape[axis]

    def kinds(self):
        """Shapes and types of the tensors."""
        return [(t.shape, t.dtype) for t, _ in self.tensors()]

    def numbers(self, sequences):
        """Numbers of sequences as a tensor. Only lists are checked, as the device would have to
        say what a tensor holds.
        """
        if isinstance(sequences, torch.Tensor):
            if sequences.dtype is not torch.int64:
                raise ValueError(f"sequences has type {sequences.dtype}, expected torch.int64")
        elif not all(0 <= b < self.batch for b in sequences):
            raise ValueError(f"sequences is {sequences}, expected numbers below {self.batch}")
        return torch.as_tensor(sequences, dtype=torch.int64, device=self.tensors()[0][0].device)

    def select(self, sequences):
        """A new state of these sequences; a sequence may be there twice."""
        at = self.numbers(sequences)
        new = self.like(len(at))
        new.set([t.index_select(axis, at) for t, axis in self.tensors()])
        new.counts = self.counts_of(sequences)
        return new

    def clone(self):
        """A copy, which shares no memory."""
        return self.select(list(range(self.batch)))

    def copy_(self, other):
        """Takes the sequences of another state of equal shapes and types, of any device."""
        if self.kinds() != other.kinds():
            raise ValueError(f"copy_: other has {other.batch} sequences, another layer or another "
                             f"type, expected {self.batch} of this layer and type")
        device = self.tensors()[0][0].device
        self.set([t.to(device) for t, _ in other.tensors()])
        if self.counts is not None:  # otherwise a graph may change the state
            self.counts = None if other.counts is None else list(other.counts)


class LanguageState(State):
    """State of PyTorch's operations. An append replaces its tensors, which may have gradients.

    summaries: [M,B,H,D,E], of complete chunks; at least float32. With decaying terms [R,B,H,D,E]:
        the sum of each term over complete chunks, for the next chunk
    mixture: [B,H,D,E], mixture of summaries that the open chunk reads
    open_summary: [B,H,D,E], summary of the open chunk
    inputs: name: the last tokens that a convolution reads, [B,taps - 1,width]
    sizes: tokens of a chunk and decaying terms of the layer
    """

    sizes = None  # of states that were saved without

    def __init__(self, counts, summaries, mixture, open_summary, inputs, sizes):
        self.counts, self.summaries, self.mixture = counts, summaries, mixture
        self.open_summary, self.inputs, self.sizes = open_summary, inputs, sizes

    def kinds(self):
        return [*super().kinds(), self.sizes]

    def tensors(self):
        return [(self.mixture, 0), (self.open_summary, 0), (self.summaries, 1),
                *((t, 0) for t in self.inputs.values())]

    def set(self, tensors):
        self.mixture, self.open_summary, self.summaries, *inputs = tensors
        self.inputs = dict(zip(self.inputs, inputs))

    def like(self, batch):
        return LanguageState([0] * batch, None, None, None, self.inputs, self.sizes)

    def counts_of(self, sequences):
        return [self.counts[b] for b in self.numbers(sequences).tolist()]

    def place(self, sequences, other):
        """Replaces sequences by those of another state, in its order."""
        at = self.numbers(sequences)
        for b, count in zip(at.tolist(), other.counts):
            self.counts[b] = count
        self.set([a.index_copy(axis, at, b)
                  for (a, axis), (b, _) in zip(self.tensors(), other.tensors())])

    def restart(self, sequences):
        """Makes sequences begin again."""
        at = self.numbers(sequences)
        self.set([t.index_fill(axis, at, 0) for t, axis in self.tensors()])
        for b in at.tolist():
            self.counts[b] = 0


class StreamState(State):
    """State in device memory, which kernels for CUDA change in place. Its tensors keep their
    addresses, so a captured graph of an append of one token can be replayed.

    positions: tokens of each sequence, int64 [B]
    counts: the same on the host, or None from an append on that names sequences by a tensor or that
        a graph captured

    The device does not tell the host when a sequence exceeds its capacity: outputs are then NaN.
    """

    def __init__(self, like, batch, sizes, inputs):
        """like: a tensor of the device and of the type of q, k and v
        sizes: heads, features, values, blocks, tokens of a block and decaying terms
        """
        self.dtype, self.sizes, self.counts, self.inputs = like.dtype, sizes, [0] * batch, inputs
        self.parts = torch.ops.mhla.stream_parts(like, batch, *sizes)
        self.memory = like.new_zeros(self.parts[-1], dtype=torch.uint8)
        self.positions = like.new_zeros(batch, dtype=torch.int64)

    def tensors(self):
        batch = len(self.positions)
        parts = (self.memory[begin:begin + batch * size].view(batch, size)
                 for begin, size in zip(self.parts[:-1:2], self.parts[1::2]))
        return [(t, 0) for t in (self.positions, *parts, *self.inputs.values())]

    def kinds(self):
        return [*super().kinds(), (self.sizes, self.dtype)]  # of its bytes

    def set(self, tensors):
        for (old, _), new in zip(self.tensors(), tensors):
            old.copy_(new)

    def like(self, batch):
        inputs = {name: t.new_zeros(batch, *t.shape[1:]) for name, t in self.inputs.items()}
        return StreamState(self.memory.new_empty(0, dtype=self.dtype), batch, self.sizes, inputs)

    def counts_of(self, sequences):
        known = self.counts is not None and not isinstance(sequences, torch.Tensor)
        return [self.counts[b] for b in sequences] if known else None

    def seen_by(self, sequences, tokens):
        """Tokens of each of these sequences before so many others, or None where the host need not
        know. Waits for the device if the host has not counted the tokens that a prefill needs.
        """
        if isinstance(sequences, torch.Tensor) or _in_capture():
            return None
        if self.counts is None and tokens == 1:
            return None
        counts = self.positions.tolist() if self.counts is None else self.counts
        return list(counts) if sequences is None else [counts[b] for b in sequences]

    def attend(self, q, k, v, mixing, sequences, at, seen, scale):
        """Outputs [n,N,H,E] of the next tokens, from rotated features q and k and from values.

        sequences, at: numbers of sequences, and as a tensor, or None for all
        seen: tokens before; without it, or for one token, each token is a step
        """
        q, k, v = (t.to(self.dtype).contiguous() for t in (q, k, v))
        *_, block, terms = self.sizes
        arguments = {"mixing": mixing.float(), "block": block, "sequences": self.batch,
                     "feature_map": "identity", "normalizer": "none", "scale": scale,
                     "decaying": terms > 0}
        if seen is None or q.shape[1] == 1:
            numbers = None if at is None else at.to(torch.int32)
            steps = [torch.ops.mhla.stream_step(self.memory, *(t[:, i:i + 1] for t in (q, k, v)),
                                                sequence_of=numbers, **arguments)
                     for i in range(q.shape[1])]
            return steps[0] if len(steps) == 1 else torch.cat(steps, 1)
        order = range(self.batch) if sequences is None else sequences
        outputs, begin = [], 0
        for end in range(1, len(order) + 1):  # runs of neighbours with equally many tokens
            if end < len(order) and seen[end] == seen[begin] and order[end] == order[end - 1] + 1:
                continue
            run = (t[begin:end] for t in (q, k, v))
            outputs.append(torch.ops.mhla.stream_prefill(self.memory, *run, first=order[begin],
                                                         seen=seen[begin], **arguments))
            begin = end
        return torch.cat(outputs)

    def advance(self, sequences, at, inputs, tokens):
        """Counts tokens of sequences, which are also `at` as a tensor, and keeps their inputs."""
        for name, t in inputs.items():
            if at is None:
                self.inputs[name].copy_(t)
            else:
                self.inputs[name].index_copy_(0, at, t.to(self.inputs[name].dtype))
        if at is None:
            self.positions.add_(tokens)
        else:
            self.positions.index_add_(0, at, torch.full_like(at, tokens))
        if isinstance(sequences, torch.Tensor) or _in_capture():
            self.counts = None
        if self.counts is not None:
            for b in range(self.batch) if sequences is None else sequences:
                self.counts[b] += tokens

    def restart(self, sequences):
        """Makes sequences begin again."""
        at = self.numbers(sequences)
        for t, _ in (*self.tensors()[:2], *self.tensors()[len(self.parts) // 2 + 1:]):
            t.index_fill_(0, at, 0)
        if isinstance(sequences, torch.Tensor):
            self.counts = None
        if self.counts is not None:
            for b in sequences:
                self.counts[b] = 0


def _in_capture():
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()

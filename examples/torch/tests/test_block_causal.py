"""Block-causal attention: the definition, and streams of steps."""

import copy
import io

import pytest
import torch
from torch.autograd import gradcheck

import mhla_torch
from reference import attention, block_of, features

FRAMES, GRID, BLOCK = 3, (4, 2), (2, 2)  # a frame has two blocks of four tokens
TOKENS, BLOCKS = 8, 2
VIDEO = {"grid": (FRAMES, *GRID), "block": (1, *BLOCK)}
MAPS = {"feature_map": "elu_plus_one"}


def draw(*shape, seed=0):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tensors(batch=2):
    """q, k, v of all frames, and a mixing matrix with numbers at later frames too."""
    return [*(draw(batch, FRAMES * TOKENS, 2, width, seed=width) for width in (3, 3, 4)),
            draw(FRAMES * BLOCKS, FRAMES * BLOCKS, seed=9)]


def block_causal(*arguments, **options):
    return mhla_torch.block_causal(*arguments, step=BLOCKS, **VIDEO, **MAPS, **options)


def frame(tensors, f):
    return [t[:, f * TOKENS:(f + 1) * TOKENS] for t in tensors]


def stream_of(mixing, **options):
    return mhla_torch.BlockStream(mixing, grid=GRID, block=BLOCK, **MAPS, **options)


@pytest.mark.parametrize("backend", ("kernels", "formula"))
@pytest.mark.parametrize("normalizer", ("key_sum", "none"))
def test_tokens_read_their_frame_and_earlier_frames(backend, normalizer):
    q, k, v, mixing = tensors()
    out = block_causal(q, k, v, mixing, normalizer=normalizer, backend=backend)
    blocks = block_of(FRAMES * TOKENS, VIDEO["grid"], VIDEO["block"])
    steps = torch.arange(FRAMES * BLOCKS) // BLOCKS
    earlier = mixing * (steps[None] <= steps[:, None])
    exact = attention(q, k, v, earlier, (blocks, blocks), phi=(features("elu_plus_one"),) * 2,
                      normalizer=normalizer)
    torch.testing.assert_close(out, exact)


def test_a_prefix_belongs_to_the_first_step():
    q, k, v, _ = tensors()
    q, k, v = (torch.cat([t[:, :1] / 2, t], 1) for t in (q, k, v))
    mixing = draw(FRAMES * BLOCKS + 1, FRAMES * BLOCKS + 1)
    out = block_causal(q, k, v, mixing, prefix=1)
    for f in range(FRAMES):
        end = 1 + (f + 1) * TOKENS
        later = v.clone()
        later[:, end:] = 7
        assert block_causal(q, k, later, mixing, prefix=1)[:, :end].equal(out[:, :end])
        assert f == 2 or not block_causal(q, k, later, mixing, prefix=1)[:, end:].equal(out[:, end:])


def test_streams_follow_autocast():
    *inputs, mixing = (t.float() for t in tensors())
    q, k, v = frame(inputs, 0)
    with torch.autocast("cpu", torch.bfloat16):
        stream = stream_of(mixing, reach=1)
        out = stream.append(stream.start(), q.bfloat16(), k, v)
        whole = mhla_torch.bidirectional(q.bfloat16(), k, v, mixing[:BLOCKS, :BLOCKS].contiguous(),
                                         grid=GRID, block=BLOCK, backend="formula", **MAPS)
    assert out.dtype is torch.bfloat16 and out.equal(whole)


def test_later_coefficients_have_no_gradient():
    inputs = [t.requires_grad_() for t in tensors()]
    block_causal(*inputs).sum().backward()
    steps = torch.arange(FRAMES * BLOCKS) // BLOCKS
    later = steps[None] > steps[:, None]
    assert not inputs[3].grad[later].any() and inputs[3].grad[~later].all()


@pytest.mark.parametrize("matrices", ((), (2,), (2, 2)))  # shared, per head, and per sequence too
@pytest.mark.parametrize("reach", (None, 2, 1, 0))
def test_streams_are_block_causal_attention(reach, matrices):
    *inputs, mixing = tensors()
    mixing = draw(*matrices, *mixing.shape)
    stream = stream_of(mixing, reach=reach)
    state = stream.start()
    at = torch.arange(FRAMES * BLOCKS) // BLOCKS
    kept = mixing if reach is None else mixing * (at[:, None] - at[None] <= reach)
    whole = block_causal(*inputs, kept, backend="formula" if len(matrices) == 2 else "auto")
    for f in range(FRAMES):
        for _ in range(2):  # visits with noise, which are taken back
            stream.append(state, *(torch.rand_like(t) for t in frame(inputs, f)))
            stream.roll_back(state)
        out = stream.append(state, *frame(inputs, f))
        torch.testing.assert_close(out, *frame([whole], f))
        assert len(state.sums) == (f + 1 if reach is None else min(f, reach) + 1)
    with pytest.raises(ValueError, match=r"mixing has shape \[.*6, 6\], expected at least \[.*8, 8\]"):
        stream.append(state, *frame(inputs, 0))
    assert state.steps == FRAMES


def test_streams_have_gradients():
    inputs = [t.requires_grad_() for t in tensors(batch=1)]

    def run(q, k, v, mixing):
        stream, outputs = stream_of(mixing), []
        state = stream.start()
        for f in range(FRAMES):
            outputs.append(stream.append(state, *frame([q, k, v], f)))
        return torch.cat(outputs, 1)

    assert gradcheck(run, inputs)
    for a, b in zip(*(torch.autograd.grad(f(*inputs).square().sum(), inputs)
                      for f in (run, block_causal))):
        torch.testing.assert_close(a, b)


def test_states_are_saved_copied_and_selected():
    *inputs, mixing = tensors()
    stream = stream_of(mixing)
    state = stream.start()
    stream.append(state, *frame(inputs, 0))
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    states = [torch.load(file, weights_only=False), copy.copy(state), state.select([0, 1])]
    out = stream.append(state, *frame(inputs, 1))
    for other in states:
        assert other.steps == 1
        assert stream.append(other, *frame(inputs, 1)).equal(out)
    swapped = state.select([1, 0])
    last = frame(inputs, 2)
    out = stream.append(state, *last)
    assert stream.append(swapped, *(t[[1, 0]] for t in last)).equal(out[[1, 0]])


def test_errors_name_the_argument():
    *inputs, mixing = tensors()
    for call, message in (
            (lambda: mhla_torch.block_causal(*inputs, mixing, step=0, **VIDEO),
             "mhla::block_causal: step is 0, expected at least 1"),
            (lambda: block_causal(*inputs, mixing, normalizer="cross_query"),
             "mhla::block_causal: normalizer is \"cross_query\", expected key_sum or none"),
            (lambda: stream_of(mixing, backend="formula"),
             "BlockStream: backend is given, expected none"),
            (lambda: stream_of(mixing, pattern=mixing > 0),
             "BlockStream: pattern is given, expected none"),
            (lambda: stream_of(mixing, key_block=(2, 2)),
             "BlockStream: key_block is given, expected none"),
            (lambda: stream_of(mixing).append(mhla_torch.BlockState(), *frame(inputs, 0),
                                              query_offsets=torch.tensor([0, 8])),
             "BlockStream.append: query_offsets is given, expected none"),
            (lambda: stream_of(mixing, reach=-1), "BlockStream: reach is -1, expected at least 0")):
        with pytest.raises(ValueError, match=message):
            call()
    stream = stream_of(mixing, reach=1)
    state = stream.start()
    with pytest.raises(ValueError, match="roll_back: state has 0 steps and the sums of 0, expected"):
        stream.roll_back(state)
    stream.append(state, *frame(inputs, 0))
    with pytest.raises(ValueError, match=r"summaries of the state has shape \[2, .*\], expected \[1"):
        stream.append(state, *(t[:1] for t in frame(inputs, 1)))
    with pytest.raises(ValueError, match="state was made with another normalizer, expected the same"):
        stream.append(state, *frame(inputs, 1), normalizer="none")
    for f in (1, 2):
        stream.append(state, *frame(inputs, f))
    stream.roll_back(state)
    with pytest.raises(ValueError, match="roll_back: state has 2 steps and the sums of 1, expected"):
        stream.roll_back(state)
    assert state.steps == 2

"""Decoding of language layers: PyTorch's operations, and streams of emulated kernels for CUDA."""

import io

import pytest
import torch

import mhla_torch
from mhla_torch import decoding, kernels

CHUNK, CHUNKS = 4, 4  # up to 16 tokens


def layer_of(dtype=torch.float64, **options):
    """A layer of one head of widths (128, 256), which the kernels take if its type has 16 bits."""
    torch.manual_seed(0)
    layer = mhla_torch.Language(256, 1, **({"chunk": CHUNK, "chunks": CHUNKS} | options))
    with torch.no_grad():
        layer.matrix().uniform_()
    layer.constrain_()
    return layer.requires_grad_(False).to(dtype)


@pytest.fixture
def streams(emulated, monkeypatch):
    """Layers on the CPU decode as if they were on CUDA."""
    monkeypatch.setattr(kernels, "stream_refusal", lambda *kind: "")


def tokens(batch, count, dtype=torch.float64):
    return torch.randn(batch, count, 256, generator=torch.Generator().manual_seed(1)).to(dtype)


def expect_near(out, exact, tolerance=2e-2):
    assert out.shape == exact.shape and torch.isfinite(out).all()
    assert (out.double() - exact).norm() <= tolerance * exact.norm()


def decode(layer, state, x, calls):
    """Appends tokens of sequences in calls (sequences, count). -> outputs of each sequence"""
    outputs, seen = [[] for _ in x], [0] * len(x)
    for sequences, count in calls:
        numbers = range(len(x)) if sequences is None else torch.as_tensor(sequences).tolist()
        y = layer.append(state, torch.stack([x[b, seen[b]:seen[b] + count] for b in numbers]),
                         sequences)
        for out, b in zip(y, numbers):
            outputs[b].append(out)
            seen[b] += count
    return [torch.cat(parts) for parts in outputs]


CALLS = {
    "steps": [(None, 1)] * 6,
    "prompt": [(None, 9), (None, 1)],
    "own-positions": [([0], 6), ([1, 2], 3), (None, 1), ([2, 0], 1), (None, 5)],
    "tensors": [([1], 5), (torch.tensor([2, 1]), 1), ([0], 1), (torch.tensor([2, 0]), 2), (None, 2)],
}


def expect_decoded(layer, x, calls):
    """Compares outputs of tokens in pieces with those of the whole sequences."""
    for out, whole in zip(decode(layer, layer.start(3), x, calls), layer(x)):
        torch.testing.assert_close(out, whole[:len(out)], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("convolution", (0, 4))
@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_sequences_have_positions_of_their_own(calls, convolution):
    expect_decoded(layer_of(convolution=convolution), tokens(3, 16), calls)


@pytest.mark.parametrize("convolution, feature_map", ((0, "relu"), (4, "elu")))
@pytest.mark.parametrize("calls", CALLS.values(), ids=CALLS)
def test_streams_equal_the_whole_sequence(streams, calls, convolution, feature_map):
    options = {"convolution": convolution, "feature_map": feature_map}
    layer, x = layer_of(torch.bfloat16, **options), tokens(3, 16, torch.bfloat16)
    state = layer.start(3)
    assert isinstance(state, decoding.StreamState)
    exact = layer_of(**options, backend="formula")(x.double())
    outputs = decode(layer, state, x, calls)
    for out, whole in zip(outputs, exact):
        expect_near(out, whole[:len(out)])
    assert state.positions.tolist() == [len(out) for out in outputs]
    assert state.counts in (None, state.positions.tolist())


ENDLESS = {  # in chunks of 2 tokens: the device counts blocks anew after the fourth
    "own-positions": [([0], 9), ([1, 2], 3), (None, 1), ([2, 0], 1), (None, 4)],
    "tensors": [(None, 7), (torch.tensor([2, 1]), 1), ([0], 1), (torch.tensor([2, 0]), 2),
                (None, 3)],
}


def endless(dtype=torch.float64, **options):
    """A layer of decaying terms, without a largest length."""
    return layer_of(dtype, chunk=2, chunks=None, decays=3, **options)


@pytest.mark.parametrize("convolution", (0, 4))
@pytest.mark.parametrize("calls", ENDLESS.values(), ids=ENDLESS)
def test_decaying_terms_have_no_largest_length(calls, convolution):
    expect_decoded(endless(convolution=convolution), tokens(3, 15), calls)


def test_decaying_terms_learn_by_decoding():
    """Gradients that PyTorch's operations record are those of the whole sequence."""
    layer, x = endless().requires_grad_(), tokens(1, 10)
    state, weights = layer.start(1), [layer.mixing, layer.k_proj.weight]
    parts = [layer.append(state, part) for part in x.split((7, 3), 1)]
    results = [torch.autograd.grad(out.square().sum(), weights)
               for out in (torch.cat(parts, 1), layer(x))]
    for ours, exact in zip(*results):
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("calls", ENDLESS.values(), ids=ENDLESS)
def test_streams_by_decaying_terms_have_no_end(streams, calls):
    layer, x = endless(torch.bfloat16), tokens(3, 15, torch.bfloat16)
    state = layer.start(3)
    assert isinstance(state, decoding.StreamState)
    exact = endless(backend="formula")(x.double())
    outputs = decode(layer, state, x, calls)
    for out, whole in zip(outputs, exact):
        expect_near(out, whole[:len(out)])
    assert state.positions.tolist() == [len(out) for out in outputs]


def test_states_by_decaying_terms_are_selected_and_restored(streams):
    layer, x = endless(torch.bfloat16), tokens(3, 11, torch.bfloat16)
    state = layer.start(3)
    layer.append(state, x[:, :9])
    saved, best = state.clone(), state.select([2, 0])
    expected = layer.append(state, x[:, 9:])
    assert torch.equal(layer.append(best, x[[2, 0], 9:]), expected[[2, 0]])
    state.copy_(saved)
    assert torch.equal(layer.append(state, x[:, 9:]), expected)
    state.restart([1])
    again = layer.append(state, x[1:2, :9], [1])
    assert torch.equal(again, layer.append(layer.start(1), x[1:2, :9]))


@pytest.mark.parametrize("sizes, sentence", (
    ({"chunks": 4, "decays": 2}, "chunks is 4, expected none, as decays is given"),
    ({}, "chunks is None, expected a number, or decays")))
def test_a_layer_has_blocks_or_decays(sizes, sentence):
    with pytest.raises(ValueError, match="Language: " + sentence):
        mhla_torch.Language(256, 1, CHUNK, **sizes)


@pytest.fixture(params=("formula", "kernels"))
def kind(request):
    """Both kinds of states; the kernels' one is emulated."""
    if request.param == "kernels":
        request.getfixturevalue("streams")
    return request.param


def started(kind):
    """A layer and a state of three sequences with 6, 9 and 9 tokens, and x of their tokens."""
    layer = layer_of(torch.bfloat16, backend="auto" if kind == "kernels" else "formula",
                     convolution=3)
    x, state = tokens(3, 16, torch.bfloat16), layer.start(3)
    layer.append(state, x[:, :6])
    layer.append(state, x[1:, 6:9], [1, 2])
    return layer, state, x


def test_a_state_is_saved_and_restored(kind):
    layer, state, x = started(kind)
    saved, file = state.clone(), io.BytesIO()
    torch.save(state, file)
    expected = layer.append(state, x[:, 9:11])
    file.seek(0)
    for other in (saved, torch.load(file, weights_only=False)):
        state.copy_(other)
        assert state.counts == [6, 9, 9]
        assert torch.equal(layer.append(state, x[:, 9:11]), expected)
    assert torch.equal(layer.append(saved, x[:, 9:11]), expected)
    with pytest.raises(ValueError, match="copy_: other has 2 sequences, .* expected 3"):
        state.copy_(state.select([0, 1]))


def test_a_state_does_not_grow():
    def size():
        return sum(t.untyped_storage().nbytes() for t, _ in state.tensors())

    layer = layer_of(convolution=3)
    state = layer.start(2)
    before = size()
    layer.append(state, tokens(2, 9))
    assert size() == before


def test_autocast_rounds_no_sums():
    """A prompt is appended under autocast, and the next tokens without it."""
    layer, x = layer_of(torch.float32, convolution=3), tokens(2, 9, torch.float32)
    state = layer.start(2)
    with torch.autocast("cpu", torch.bfloat16):
        layer.append(state, x[:, :6])
    assert {t.dtype for t, _ in state.tensors()} == {torch.float32}
    for sums in (state.open_summary, state.mixture, state.summaries[0]):
        assert not torch.equal(sums, sums.bfloat16().float())
    exact = layer_of(convolution=3)(x.double())
    expect_near(layer.append(state, x[:1, 6:], [0]), exact[:1, 6:])


@pytest.mark.parametrize("dtypes, backend", (((torch.bfloat16, torch.float16), "auto"),
                                             ((torch.float32, torch.float64), "formula")))
def test_copies_no_state_of_another_type(streams, dtypes, backend):
    state, other = (layer_of(dtype, backend=backend).start(2) for dtype in dtypes)
    with pytest.raises(ValueError, match="copy_: other has 2 sequences, .* another type, expected"):
        state.copy_(other)


def test_after_an_error_a_state_is_as_before():
    layer, state, x = started("formula")
    saved, later, calls = state.clone(), x[[0, 1], 9:14], iter("ab")
    failing = layer.o_proj.register_forward_pre_hook(lambda *_: next(calls) and None)
    with pytest.raises(StopIteration):  # once sequence 0 has all of its tokens
        layer.append(state, later, [0, 1])
    failing.remove()
    assert state.counts == saved.counts
    assert torch.equal(layer.append(state, later, [0, 1]), layer.append(saved, later, [0, 1]))


@pytest.mark.parametrize("order", ([2, 0, 0, 1], torch.tensor([1, 2])))
def test_sequences_are_selected_in_any_order(kind, order):
    layer, state, x = started(kind)
    best = state.select(order)
    expected = layer.append(state, x[:, 9:11])
    assert torch.equal(layer.append(best, x[order, 9:11]), expected[order])
    assert best.counts in (None, [state.counts[b] for b in order])


def test_a_state_may_have_no_sequences(kind):
    layer, state, x = started(kind)
    for empty in (layer.start(0), state.select([]), state.select([]).clone()):
        assert empty.batch == 0 and empty.counts == []
        assert layer.append(empty, x[:0, :3]).shape == (0, 3, 256)
        assert layer.append(state, x[:0, :1], []).shape == (0, 1, 256)
        empty.restart([])
        empty.copy_(layer.start(0))


@pytest.mark.parametrize("sequences", ([1], torch.tensor([1])))
def test_a_sequence_begins_again(kind, sequences):
    layer, state, x = started(kind)
    state.restart(sequences)
    other = layer.start(1)
    for count in (1, 6):
        out = layer.append(state, x[1:2, :count], [1])
        expect_near(out, layer.append(other, x[1:2, :count]).double(), 1e-2)
    expect_near(layer.append(state, x[:1, 6:8], [0]),
                layer_of(backend="formula", convolution=3)(x[:1].double())[:, 6:8])


def test_appends_change_no_address(streams):
    """A captured graph of an append finds the state where it was."""
    layer, state, x = started("kernels")
    places = [t.data_ptr() for t, _ in state.tensors()]
    for sequences in (None, torch.tensor([2, 0])):
        layer.append(state, x[:2 if sequences is not None else 3, 9:10], sequences)
    state.copy_(layer.start(3))
    assert state.counts is None  # which a graph may change
    assert [t.data_ptr() for t, _ in state.tensors()] == places


def test_outputs_beyond_the_capacity_are_not_numbers(streams):
    layer, x = layer_of(torch.bfloat16), tokens(2, 16, torch.bfloat16)
    state = layer.start(2)
    layer.append(state, x)
    with pytest.raises(ValueError, match="a sequence has 17 tokens, expected at most 16"):
        layer.append(state, x[:, :1])
    assert layer.append(state, x[:, :1], torch.tensor([0, 1])).isnan().all()


def test_says_what_does_not_fit(kind):
    layer, state, x = started(kind)
    with pytest.raises(ValueError, match="x is of 2 sequences, expected 3"):
        layer.append(state, x[:2, :1])
    with pytest.raises(ValueError, match="a sequence has 18 tokens, expected at most 16"):
        layer.append(state, x[1:, :9], [1, 2])
    for wrong in ([1, 1], [0, 3]):
        with pytest.raises(ValueError, match="sequences is .* expected different numbers below 3"):
            layer.append(state, x[:2, :1], wrong)


def test_streams_have_no_gradients(streams):
    layer, state, x = started("kernels")
    with pytest.raises(ValueError, match="gradients are recorded, expected torch.no_grad"):
        layer.requires_grad_().append(state, x[:, :1])
    with torch.inference_mode():
        layer.append(state, x[:, :1])


def fake_start(**options):
    with torch._subclasses.FakeTensorMode(), torch.device("cuda"):
        layer = mhla_torch.Language(**({"channels": 256, "heads": 1, "chunk": 4, "chunks": 2} |
                                       options))
        return type(layer.start(1))


@pytest.mark.parametrize("options, reason", (
    ({}, "q has type torch.float32, expected bfloat16 or float16 on CUDA"),
    ({"heads": 2}, r"q and v have widths \(64, 128\), expected one of"),
    ({"chunks": None, "decays": 33}, "mixing has 33 decaying terms, expected at most 32 on CUDA"),
))
def test_says_why_it_decodes_in_pytorch(monkeypatch, options, reason):
    monkeypatch.setattr(kernels, "WITHOUT_CUDA", "")
    monkeypatch.setattr(kernels, "is_old", lambda device: False)
    monkeypatch.setattr(kernels, "WARNED", set())
    try:
        torch.set_default_dtype(torch.bfloat16 if options else torch.float32)
        with pytest.warns(mhla_torch.FormulaWarning, match="Language decodes in PyTorch: " + reason):
            assert fake_start(**options) is decoding.LanguageState
        with pytest.raises(ValueError, match=f'Language: {reason}.*backend="formula" decodes'):
            fake_start(**options, backend="kernels")
        assert fake_start(**options, backend="formula") is decoding.LanguageState
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype, cast", ((torch.float32, torch.bfloat16),
                                         (torch.float64, torch.float64)))
def test_autocast_leaves_float64(dtype, cast):
    try:
        torch.set_autocast_enabled("cuda", True)  # which torch.autocast leaves without a device
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_default_dtype(dtype)
        with torch._subclasses.FakeTensorMode(), torch.device("cuda"):
            assert mhla_torch.Language(256, 1, CHUNK, CHUNKS).projection_type() is cast
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_default_dtype(torch.float32)


OPERATORS = torch.ops.mhla


@pytest.mark.parametrize("wrong, sentence", (
    ({"q": torch.zeros(2, 1, 1, 128)}, "q has type Float, expected BFloat16 or Half on CUDA"),
    ({"k": torch.zeros(2, 1, 1, 64).bfloat16()}, r"k has shape \[2, 1, 1, 64\], expected"),
    ({"state": torch.zeros(9)}, "state has type Float, expected Byte"),
    ({"state": torch.zeros(9, dtype=torch.uint8)}, "state is too small"),
    ({"mixing": torch.ones(2, 3)}, r"mixing has shape \[2, 3\], expected \[2, 2\]"),
    ({"feature_map": "exp"}, 'feature_map is "exp", expected relu, elu_plus_one or identity'),
    ({"mixing": torch.ones(3, 2), "decaying": True},
     r"mixing has shape \[3, 2\], expected \[2, 2\]"),
    ({"mixing": torch.ones(2, 33), "decaying": True},
     "mixing has 33 decaying terms, expected 1 to 32"),
    ({"sequence_of": torch.zeros(1, dtype=torch.int32)}, "sequence_of has 1 numbers, expected 2"),
    ({"sequence_of": torch.zeros(2, dtype=torch.int64)}, "sequence_of has type Long, expected Int"),
))
def test_errors_name_the_argument(emulated, wrong, sentence):
    q, v = torch.zeros(2, 1, 1, 128).bfloat16(), torch.zeros(2, 1, 1, 256).bfloat16()
    parts = OPERATORS.stream_parts(q, 2, 1, 128, 256, 2, 4, 2)  # also enough without terms
    state = torch.zeros(parts[-1], dtype=torch.uint8)
    named = {"state": state, "q": q, "k": q, "v": v, "mixing": torch.ones(2, 2), "block": 4,
             "sequences": 2}
    with pytest.raises((ValueError, RuntimeError), match=sentence):
        OPERATORS.stream_step(**(named | wrong))


def test_queries_are_scaled(emulated):
    """A layer does not show it, because it normalises outputs."""
    q, v = tokens(1, 1)[..., None, :128].bfloat16(), tokens(1, 1)[..., None, :].bfloat16()
    outputs = []
    for scale in (1., 0.5):
        state = torch.zeros(OPERATORS.stream_parts(q, 1, 1, 128, 256, 2, 4)[-1], dtype=torch.uint8)
        outputs.append(OPERATORS.stream_step(state, q, q, v, torch.ones(2, 2), 4, 1, scale=scale,
                                             normalizer="none"))
    assert outputs[0].any() and torch.equal(outputs[0] / 2, outputs[1])


def test_traces_shapes():
    with torch._subclasses.FakeTensorMode(), torch.device("cuda"):
        q, v = (torch.empty(3, 5, 2, width, dtype=torch.bfloat16) for width in (128, 256))
        named = {"state": torch.empty(9, dtype=torch.uint8), "mixing": torch.empty(2, 2),
                 "block": 4, "sequences": 3}
        for out in (OPERATORS.stream_prefill(q=q, k=q, v=v, first=0, seen=0, **named),
                    OPERATORS.stream_step(q=q[:, :1], k=q[:, :1], v=v[:, :1], **named)):
            assert out.is_cuda and out.shape[2:] == (2, 256) and out.dtype is torch.bfloat16


def test_tells_the_parts_of_states_that_there_are(emulated):
    parts = OPERATORS.stream_parts(torch.zeros(1), 3, 2, 64, 64, 5, 7)
    begins, sizes = parts[:-1:2], parts[1::2]
    assert sum(3 * size for size in sizes) <= parts[-1] < sum(3 * size + 256 for size in sizes)
    assert all(begin % 256 == 0 for begin in begins) and begins == sorted(begins)
    assert OPERATORS.stream_parts(torch.zeros(1), 1, 2, 64, 64, 5, 7)[1::2] == sizes
    of_terms = OPERATORS.stream_parts(torch.zeros(1), 3, 2, 64, 64, 5, 7, 3)
    assert of_terms[1::2][-2:] == [2 * 3 * 64 * 64 * 4, 2 * 3 * 64 * 4]
    assert OPERATORS.stream_parts(torch.zeros(1), 3, 2, 64, 64, 9, 7, 3) == of_terms
    for wrong in ((3, 2, 64, 72, 5, 7), (3, 2, 96, 72, 5, 7), (-1, 2, 64, 64, 5, 7),
                  (3, 0, 64, 64, 5, 7), (3, 2, 64, 64, 5, 7, 33), (3, 2, 64, 64, 5, 7, -1)):
        with pytest.raises(RuntimeError, match="stream_parts.*expected"):
            OPERATORS.stream_parts(torch.zeros(1), *wrong)

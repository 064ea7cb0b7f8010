"""The layers against stored cases of the authors' code, and a decoder against whole sequences."""

import io
import os
from pathlib import Path

import pytest
import torch

from mhla_torch import Language, Video, Vision, layers
from peers.torch_layers import layer_of, read_case  # of benchmarks/

FOLDERS = [Path(__file__).parents[3] / "tests" / "data",
           *(Path(folder) for folder in [os.environ.get("MHLA_GOLDEN_DIR")] if folder)]
CASES = sorted(path for folder in FOLDERS for path in (folder / "layers").glob("*.safetensors"))


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def relative(a, b):
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_equals_the_authors_layer(path):
    tensors, about = read_case(path)
    x, y, dy = (tensors[name] for name in ("x", "y", "dy"))
    layer = layer_of(about, x, layers)
    layer.load_state_dict({name.removeprefix("param."): tensor for name, tensor in tensors.items()
                           if name.startswith("param.")})
    flat = x.flatten(1, -2).detach().requires_grad_()  # [B,M,W,C] -> [B,N,C]
    out = layer(flat)
    assert relative(out, y.view_as(out)) < 1e-9
    out.backward(dy.view_as(out))
    assert relative(flat.grad, tensors["dx"].view_as(flat)) < 1e-7
    compared = 0
    for name, parameter in layer.named_parameters():
        assert relative(parameter.grad, tensors["grad." + name]) < 1e-7, name
        compared += 1
    assert compared == sum(name.startswith("grad.") for name in tensors) > 0


def test_there_are_stored_cases_of_every_family():
    assert {read_case(path)[1]["kind"] for path in CASES} >= {"dit", "video", "nlp"}


@pytest.mark.parametrize("convolution", (0, 4))
def test_decodes_what_it_computes_whole(convolution):
    torch.manual_seed(0)
    layer = Language(16, 2, chunk=4, chunks=5, convolution=convolution)
    with torch.no_grad():
        layer.mixing_matrix.uniform_()
    layer.constrain_()
    x = torch.randn(3, 19, 16)
    whole = layer(x)
    for pieces in ([19], [1] * 19, [5, 1, 1, 8, 4], [4, 0, 15]):
        state = layer.start(3)
        with torch.inference_mode():
            y = torch.cat([layer.append(state, piece) for piece in x.split(pieces, 1)], 1)
        torch.testing.assert_close(y, whole, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="a sequence has 21 tokens, expected at most 20"):
        layer.append(state, x[:, :2])
    with pytest.raises(ValueError, match="a sequence has 21 tokens, expected at most 20"):
        layer(torch.randn(1, 21, 16))


def test_decodes_in_sums_of_float():
    torch.manual_seed(0)
    layer = Language(16, 2, chunk=64, chunks=2)
    with torch.no_grad():
        layer.q_proj.weight /= 1000
        layer.k_proj.weight *= 40
        layer.v_proj.weight *= 400  # sums of a chunk exceed the range of float16
    x = torch.randn(1, 128, 16)
    exact = layer(x)
    layer.half()
    state = layer.start(1)
    with torch.inference_mode():
        y = layer.append(state, x.half())
        whole = layer(x.half())
    assert state.open_summary.dtype is torch.float32 and y.dtype is torch.float16
    assert state.summaries.abs().max() > 65504
    assert relative(y.double(), exact) < 2 * relative(whole.double(), exact) + 1e-3


def test_decodes_where_its_weights_are():
    with torch._subclasses.FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        layer = Language(16, 2, chunk=4, chunks=2, backend="formula")
        state = layer.start(1)
        for _ in range(5):
            assert layer.append(state, torch.empty(1, 1, 16)).is_cuda


def test_copies_of_states_keep_their_device():
    state = Language(24, 2, 16, 4, "elu").start(1)
    empty = state.clone()
    empty.set([t.to("meta") for t, _ in empty.tensors()])
    empty.copy_(state)
    assert all(t.is_meta for t, _ in empty.tensors())


def test_states_refuse_numbers_of_no_sequence_and_states_of_other_layers():
    layer = Language(24, 2, 16, 4, "elu")
    state, x = layer.start(3), torch.randn(3, 9, 24)
    layer.append(state, x)
    before = [t.clone() for t, _ in state.tensors()]
    wrong = ([0, 3], "below 3"), ([-1], "below 3"), (torch.tensor([True, False, False]), "int64")
    for sequences, sentence in wrong:
        for call in (state.restart, state.select):
            with pytest.raises(ValueError, match=sentence):
                call(sequences)
    with pytest.raises(ValueError, match="int64"):
        layer.append(state, x[:, :1], torch.tensor([True, False, False]))
    with pytest.raises(ValueError, match="another layer"):
        state.copy_(Language(24, 2, 8, 4, "elu").start(3))
    assert state.counts == [9] * 3 and all(map(torch.equal, before, (t for t, _ in state.tensors())))


def test_tokens_inside_a_chunk_read_no_summary(monkeypatch):
    layer = Language(24, 2, 8, 4).requires_grad_(False)
    state, read = layer.start(3), []
    select = type(state).select
    monkeypatch.setattr(type(state), "select", lambda self, sequences: read.append(
        len(self.summaries)) or select(self, sequences))
    x = torch.randn(3, 20, 24)
    parts = [layer.append(state, x[[b], :begin], [b]) for b, begin in enumerate((3, 4, 7))]
    read.clear()
    places = [3, 4, 7]
    for _ in range(10):
        out = layer.append(state, torch.stack([x[b, n:n + 1] for b, n in enumerate(places)]))
        parts = [torch.cat([part, y[None]], 1) for part, y in zip(parts, out)]
        places = [n + 1 for n in places]
    for part, whole in zip(parts, layer(x)):
        torch.testing.assert_close(part[0], whole[:part.shape[1]])
    assert read.count(0) > read.count(4) > 0 and len(read) == 30


def test_rotary_tables_are_exact_in_every_type():
    exact = [layer.turns for layer in layers_of_all_families()[1:]]
    torch.set_default_dtype(torch.float32)
    for turns, layer in zip(exact, layers_of_all_families()[1:]):
        assert layer.turns.dtype is torch.float32
        assert layer.half().turns.dtype is torch.float32
        assert torch.equal(layer.double().turns, turns)
        assert torch.equal(layer.to("meta").to_empty(device="cpu").turns, turns)
        assert "turns" not in layer.state_dict()


def test_rotary_tables_keep_their_address():
    for layer in layers_of_all_families()[1:]:
        turns, address = layer.turns.clone(), layer.turns.data_ptr()
        with torch.inference_mode():
            layer.load_state_dict(layer.state_dict())
        assert layer.cpu().turns.data_ptr() == address and torch.equal(layer.turns, turns)
        address = layer.half().turns.data_ptr()
        assert layer.half().turns.data_ptr() == address
        layer.double()
        layer(torch.randn(1, 64, 24)).sum().backward()


def layers_of_all_families():
    return (Vision(24, 2, (8, 8), (4, 4), "blocks"), Video(24, 2, (4, 4, 4), (2, 2, 2), lepe=True),
            Language(24, 2, 16, 4, "elu", convolution=4))


@pytest.mark.parametrize("dtype", (torch.float64, torch.bfloat16))
def test_a_layer_of_no_memory_takes_the_tensors_of_a_checkpoint(dtype):
    x = torch.randn(2, 64, 24).to(dtype)
    with torch.device("meta"):
        empty = torch.nn.ModuleList(layers_of_all_families())
    for whole, layer in zip(layers_of_all_families(), empty):
        whole.to(dtype)
        torch.nn.Sequential(layer).load_state_dict(
            {f"0.{name}": tensor for name, tensor in whole.state_dict().items()}, assign=True)
        assert torch.equal(layer(x), whole(x))


def test_constrains_its_mixing_matrix():
    for layer, low in ((layers_of_all_families()[0], 0), (layers_of_all_families()[2], 1e-5)):
        matrix = layer.piece_attn.conv.weight if low == 0 else layer.mixing_matrix
        with torch.no_grad():
            matrix.copy_(torch.linspace(-1, 2, matrix.numel()).view_as(matrix))
        wanted = matrix.detach().clamp(low, 1)
        layer.constrain_()
        wanted = wanted if low == 0 else wanted[..., 0, 0, 0, 0].tril()
        assert torch.equal(matrix.view_as(wanted), wanted)


@pytest.mark.parametrize("make, sentence", (
    (lambda: Vision(24, 5, (8, 8), (4, 4)), "Vision: channels is 24, expected a multiple of 5"),
    (lambda: Vision(24, 0, (8, 8), (4, 4)), "Vision: heads is 0, expected at least 1"),
    (lambda: Vision(24, 2, (8, 8), (4, 3)), r"Vision: block is \(4, 3\), expected divisors of grid"),
    (lambda: Vision(24, 2, (8, 8), (4,)), r"Vision: block is \(4,\), expected 2 sizes"),
    (lambda: Vision(24, 2, (8, 8, 8), (4, 4)), r"Vision: grid is \(8, 8, 8\), expected 2 sizes"),
    (lambda: Vision(24, 2, (8, 8), (0, 4)), r"Vision: block is \(0, 4\), expected 2 sizes"),
    (lambda: Vision(24, 2, (8, 8), (4, 4), "blocks", lepe=4), "Vision: lepe is 4, expected an odd"),
    (lambda: Vision(24, 2, (8, 8), (4, 4)), 'Vision: order is None, expected "raster", along'),
    (lambda: Video(24, 24, (4, 4, 4), (2, 2, 2)), "Video: channels is 24, expected a multiple of 48"),
    (lambda: Video(24, 2, (4, 4, 4), (2, 2, 3)), r"Video: layout is \(2, 2, 3\), expected divisors"),
    (lambda: Video(24, 2, (4, 4), (2, 2)), r"Video: grid is \(4, 4\), expected 3 sizes"),
    (lambda: Language(24, 4, 16, 4), "Language: channels is 24, expected a multiple of 16"),
    (lambda: Language(24, 2, 0, 4), "Language: chunk is 0, expected at least 1"),
    (lambda: Language(24, 2, 16, -1), "Language: chunks is -1, expected at least 1"),
    (lambda: Language(24, 2, 16, 4, convolution=-1), "Language: convolution is -1, expected at"),
))
def test_sizes_are_checked_when_a_layer_is_made(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


def test_mixing_starts_with_columns_that_sum_to_one():
    mixing = Vision(24, 2, (8, 4), (2, 2), "blocks").piece_attn.matrix().detach()
    torch.testing.assert_close(mixing.sum(0), torch.ones(8))
    assert not torch.allclose(mixing.sum(1), torch.ones(8))


def test_images_have_tokens_in_either_order():
    blocks, raster = (Vision(24, 2, (8, 12), (2, 4), order, lepe=5)
                      for order in ("blocks", "raster"))
    raster.load_state_dict(blocks.state_dict())
    image = torch.randn(2, 8, 12, 24)
    in_blocks = image.unflatten(2, (3, 4)).unflatten(1, (4, 2)).transpose(2, 3)
    y = blocks(in_blocks.flatten(1, 4)).view_as(in_blocks).transpose(2, 3).flatten(1, 4)
    torch.testing.assert_close(raster(image.flatten(1, 2)), y, rtol=1e-12, atol=1e-12)


def test_layers_compile_whole():
    x = torch.randn(2, 64, 24)
    for layer in layers_of_all_families():
        torch.compiler.reset()
        compiled = torch.compile(layer, fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-12, atol=1e-12)


def test_layers_are_saved_whole():
    x = torch.randn(2, 64, 24)
    for layer in layers_of_all_families():
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(x), layer(x))

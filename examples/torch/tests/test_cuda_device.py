"""The operators on a CUDA device: against the CPU, and gradients against the formula in float64.

All tests are skipped without a device.
"""

import pytest
import torch

import mhla_torch
from cuda_calls import call, extras, KINDS, on_device, TAKEN, tensors, WIDTHS

# ---- forwards -----------------------------------------------------------------------------------

# Relative to the root mean square.
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1.5e-3, torch.float32: 1e-4}


def expect_near(out, exact):
    """Expects out to be near `exact` [.] in float64, up to rounding to its type."""
    error = (out.cpu().double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < TOLERANCE[out.dtype]


def expect_right(function, *arguments):
    """Expects a function to give on the device its result on the CPU in float64."""
    out = function(*(t.cuda() for t in arguments))
    assert out.is_cuda and out.dtype is arguments[0].dtype
    expect_near(out, function(*(t.cpu().double() for t in arguments)))


@on_device
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths, dtype", TAKEN)
@pytest.mark.parametrize("tokens", (24, 600))
@torch.no_grad()
def test_equals_the_cpu(kind, widths, dtype, tokens):
    for options in ({}, {"feature_map": "elu_plus_one", "eps": 0.25, "scale": 0.5},
                    {"feature_map": "identity", "normalizer": "none"}):
        expect_right(lambda *t: call(kind, *t, **options), *tensors(widths, (tokens,) * 2, dtype))


@on_device
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("block", ((12, 15), (3, 5)))  # fused, and three-stage
@pytest.mark.parametrize("normalizer", ("key_sum", "cross_query"))
@torch.no_grad()
def test_images_equal_the_cpu(widths, block, normalizer):
    q, k, v, _ = tensors(widths, (720, 720), batch=8, heads=9)
    blocks = 24 // block[0] * 30 // block[1]
    for mixing in (torch.rand(blocks, blocks), torch.rand(blocks, blocks).T):
        expect_right(lambda *t: mhla_torch.bidirectional(*t, grid=(24, 30), block=block,
                                                         normalizer=normalizer), q, k, v, mixing)


@on_device
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_reads_any_strides(kind):
    packed = torch.randn(2, 300, 3, 3, 64, dtype=torch.float16, device="cuda")
    mixing = torch.rand(50, 50, device="cuda")
    q, k, v = packed.unbind(3)
    dense = call(kind, q.contiguous(), k.contiguous(), v.contiguous(), mixing)
    assert torch.equal(call(kind, q, k, v, mixing), dense)
    first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
    out = call(kind, *first, mixing.T.contiguous().T, layout="bhnd")
    assert torch.equal(out.transpose(1, 2), dense) and out.transpose(1, 2).is_contiguous()


@on_device
@torch.no_grad()
def test_sequences_of_two_lengths():
    expect_right(lambda *t: call("bidirectional", *t), *tensors(tokens=(100, 600)))


@on_device
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_empty_batches(kind):
    assert call(kind, *tensors(batch=0, device="cuda")).shape == (0, 24, 3, 64)


@on_device
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_runs_in_the_current_stream(kind):
    arguments = tensors(tokens=(600, 600), device="cuda")
    expected = call(kind, *arguments)
    q = torch.zeros_like(arguments[0])
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(50_000_000)  # cycles, before q is there
        q.copy_(arguments[0])
        out = call(kind, q, *arguments[1:])
        torch.cuda.current_stream().synchronize()
    assert torch.equal(out, expected)


@on_device
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_can_be_captured_in_a_graph(kind):
    arguments, later = tensors(tokens=(600, 600), device="cuda"), torch.rand(2, 600, 3, 64).cuda()
    call(kind, *arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call(kind, *arguments)
    arguments[0].copy_(later)
    graph.replay()
    assert torch.equal(out, call(kind, *arguments))


@on_device
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_compiles_whole(kind):
    torch.compiler.reset()
    arguments = tensors(device="cuda")
    compiled = torch.compile(lambda *t: call(kind, *t).square(), fullgraph=True)
    assert torch.equal(compiled(*arguments), call(kind, *arguments).square())


@on_device
@torch.no_grad()
def test_refuses_tensors_of_two_devices():
    q, k, v, mixing = tensors(device="cuda")
    with pytest.raises(ValueError, match="mixing is on cpu, expected cuda:0"):
        call("causal", q, k, v, mixing.cpu())
    with pytest.raises(ValueError, match="k is on cpu, expected cuda:0"):
        call("causal", q, k.cpu(), v, mixing)


@on_device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two devices are there")
@torch.no_grad()
def test_runs_on_the_device_of_its_tensors():
    arguments = tensors(tokens=(600, 600), device="cuda:1")
    out = call("causal", *arguments)
    assert out.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    expect_near(out, call("causal", *(t.cpu().double() for t in arguments)))


# ---- gradients ----------------------------------------------------------------------------------

GRADIENT_TOLERANCE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 2e-4}


def with_gradients(function, tensors, dout):
    """The output of a function, and the gradients of its tensors."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    out = function(*leaves)
    gradients = torch.autograd.grad(out, leaves, dout.to(out), allow_unused=True)
    return out.detach(), *(g for g in gradients if g is not None)


def expect_right_gradients(function, *tensors):
    """Expects outputs and gradients of the kernels to be near the formula's in float64."""
    width = tensors[2].shape[-1]
    dout = torch.randn(*tensors[0].shape[:-1], width, dtype=torch.float64).to(tensors[0].dtype)
    near = with_gradients(lambda *t: function(*t, backend="kernels"), [t.cuda() for t in tensors],
                          dout.cuda())
    exact = with_gradients(lambda *t: function(*t, backend="formula"),
                           [t.cuda().double() for t in tensors], dout.cuda())
    for i, (a, b) in enumerate(zip(near, exact, strict=True)):
        error = (a.double() - b).square().mean().sqrt() / b.square().mean().sqrt()
        assert error < GRADIENT_TOLERANCE[tensors[0].dtype], (i, error.item())
        assert torch.isfinite(a).all()


@on_device
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths, dtype", TAKEN)
def test_gradients_equal_the_formula(kind, widths, dtype):
    for tokens in (24, 600):
        inputs = tensors(widths, (tokens, tokens), dtype)
        for options in ({}, {"feature_map": "elu_plus_one", "eps": 0.25, "scale": 0.5},
                        {"feature_map": "identity", "normalizer": "none"}):
            expect_right_gradients(lambda *t, **o: call(kind, *t, **options, **o), *inputs)


@on_device
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths, dtype", TAKEN)
def test_angles_gain_and_gate_equal_the_formula(kind, widths, dtype):
    """Outputs and gradients of all arguments, with and without a gate and a normaliser."""
    for tokens in (24, 600):
        more = extras(widths, (tokens, tokens), dtype)
        angles = {name: t.cuda() for name, t in more.items() if name.endswith("angles")}
        normalizer = "none" if "causal" in kind else "key_sum"
        for options in ({"normalizer": normalizer, "eps": 0.25, "norm_eps": 1e-3},
                        {"feature_map": "elu_plus_one", "normalizer": "none", "scale": 0.5},
                        {"relu_eps": 0., "normalizer": "none"}):
            inputs = [*tensors(widths, (tokens, tokens), dtype), more["gain"], more["gate"]]
            expect_right_gradients(lambda q, k, v, mixing, gain, gate, **o: call(
                kind, q, k, v, mixing, gain=gain, gate=gate, **angles, **options, **o), *inputs)
            expect_right_gradients(lambda q, k, v, mixing, gain, **o: call(
                kind, q, k, v, mixing, gain=gain, **options, **o), *inputs[:5])
            expect_right_gradients(lambda *t, **o: call(kind, *t, **angles, **options, **o),
                                   *inputs[:4])


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_angles_around_kernels_of_float32_equal_the_formula(kind):
    made = extras(tokens=(600, 600), device="cuda")
    more = {name: t.float() for name, t in made.items()}
    for sums in ({"normalizer": "none"}, {"eps": 0.5}):
        expect_right_gradients(lambda *t, **o: call(kind, *t, **more, **sums, **o),
                               *tensors(tokens=(600, 600), dtype=torch.float32))


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_angles_gain_and_gate_in_a_graph_and_compiled(kind):
    more = extras(tokens=(600, 600), device="cuda")
    inputs = [*tensors(tokens=(600, 600), device="cuda"), more.pop("gain"), more.pop("gate")]
    dout = torch.randn_like(inputs[2])

    def run(q, k, v, mixing, gain, gate):
        return call(kind, q, k, v, mixing, gain=gain, gate=gate, normalizer="none", **more)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        with_gradients(run, inputs, dout)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = with_gradients(run, inputs, dout)
    inputs[5].copy_(torch.rand_like(inputs[5]))
    graph.replay()
    eager = with_gradients(run, inputs, dout)
    assert all(torch.equal(a, b) for a, b in zip(captured, eager))
    torch.compiler.reset()
    compiled = with_gradients(torch.compile(run, fullgraph=True), inputs, dout)
    for a, b in zip(compiled, eager):
        torch.testing.assert_close(a, b)


@on_device
@pytest.mark.parametrize("block", ((12, 15), (3, 5), (7, 7)))
def test_gradients_of_images_equal_the_formula(block):
    q, k, v, _ = tensors((64, 64), (720, 720), batch=4, heads=6)
    blocks = -(-24 // block[0]) * -(-30 // block[1])
    expect_right_gradients(lambda *t, **o: mhla_torch.bidirectional(*t, grid=(24, 30), block=block,
                                                                    **o),
                           q, k, v, torch.rand(blocks, blocks))


@on_device
def test_gradients_of_two_lengths_and_of_other_layouts():
    expect_right_gradients(lambda *t, **o: call("bidirectional", *t, **o),
                           *tensors(tokens=(100, 600)))
    packed = torch.randn(2, 300, 3, 3, 64).half()
    q, k, v = packed.unbind(3)
    mixing = torch.rand(50, 50)
    expect_right_gradients(lambda *t, **o: call("causal", *t, **o), q, k, v, mixing)
    first = [t.transpose(1, 2) for t in (q, k, v)]
    expect_right_gradients(lambda *t, **o: call("causal", *t, layout="bhnd", **o), *first, mixing)


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_have_the_same_bits_each_time(kind):
    inputs = tensors(tokens=(600, 600), device="cuda")
    dout = torch.randn_like(inputs[2])
    first, again = (with_gradients(lambda *t: call(kind, *t), inputs, dout) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again))


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_saves_alike_whatever_it_is_asked(kind):
    if kind.startswith("linear"):
        pytest.skip("linear has no summaries")
    inputs = tensors(tokens=(600, 600), device="cuda")
    dout = torch.randn_like(inputs[2])
    results = [with_gradients(lambda *t: call(kind, *t, save=save), inputs, dout)
               for save in ("inputs", "summaries")]
    assert all(torch.equal(a, b) for a, b in zip(*results))


@on_device
@pytest.mark.parametrize("kind", ("bidirectional", "causal"))
def test_gradients_compile_whole(kind):
    torch.compiler.reset()
    inputs = tensors(tokens=(96, 96), device="cuda")
    dout = torch.randn_like(inputs[2])
    compiled = torch.compile(lambda *t: call(kind, *t), fullgraph=True)
    for a, b in zip(*(with_gradients(run, inputs, dout)
                      for run in (compiled, lambda *t: call(kind, *t)))):
        torch.testing.assert_close(a, b)


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_can_be_captured_in_a_graph(kind):
    inputs, dout = tensors(tokens=(600, 600), device="cuda"), torch.rand(2, 600, 3, 64).cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        with_gradients(lambda *t: call(kind, *t), inputs, dout)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = with_gradients(lambda *t: call(kind, *t), inputs, dout)
    inputs[0].copy_(torch.rand_like(inputs[0]))
    graph.replay()
    for a, b in zip(captured, with_gradients(lambda *t: call(kind, *t), inputs, dout)):
        assert torch.equal(a, b)


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_has_gradients(kind):
    inputs = [t.float() for t in tensors(tokens=(96, 96), device="cuda")]
    dout = torch.randn_like(inputs[2])

    def low(*t):
        with torch.autocast("cuda", torch.bfloat16):
            assert call(kind, *t, explain=True).backend == "kernels"
            return call(kind, *t).float()

    for a, b in zip(with_gradients(low, inputs, dout),
                    with_gradients(lambda *t: call(kind, *t, backend="formula"), inputs, dout)):
        assert a.dtype is torch.float32
        assert (a - b).norm() < 3e-2 * b.norm()


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_keeps_the_contract_of_operators(kind):
    q, k, v, mixing = (t.requires_grad_() for t in tensors(batch=1, device="cuda"))
    blocks = {"bidirectional": (mixing, [], [6]), "causal": (mixing, 6), "linear": (),
              "linear_causal": (True,)}[kind]
    operator = getattr(torch.ops.mhla, kind.removesuffix("_causal")).default
    torch.library.opcheck(operator, (q, k, v, *blocks), test_utils=(
        "test_schema", "test_autograd_registration", "test_faketensor"))


@on_device
@pytest.mark.parametrize("kind", KINDS)
def test_the_formula_equals_the_cpu(kind):
    inputs = tensors((24, 40), (100, 100), torch.float64)
    keep = torch.arange(200).view(2, 100) % 5 < 3
    out = call(kind, *(t.cuda() for t in inputs), key_mask=keep.cuda(), backend="formula", eps=1.)
    exact = call(kind, *inputs, key_mask=keep, backend="formula", eps=1.)
    torch.testing.assert_close(out.cpu(), exact, rtol=1e-6, atol=1e-6)

"""The operators on CUDA. What runs on a device is skipped without one; the rest needs none: kernels
are there, shapes for tracing, and what is refused before CUDA is called.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mhla_torch
from mhla_torch import built, operators

KINDS = ("bidirectional", "causal", "linear", "linear_causal")
WIDTHS = ((64, 64), (72, 72), (128, 128), (128, 256))
built_for_cuda = pytest.mark.skipif(not mhla_torch.cuda_built(), reason=operators._WITHOUT_CUDA)
on_device = pytest.mark.skipif(not (mhla_torch.cuda_built() and torch.cuda.is_available()),
                               reason=operators._WITHOUT_CUDA or "no CUDA device is there")


def tensors(widths=(64, 64), tokens=(24, 24), dtype=torch.bfloat16, device="cpu", batch=2, heads=3):
    """q, k, v [B,N,H,.] and a mixing matrix of blocks of 6 tokens, at least four."""
    torch.manual_seed(0)
    d, e = widths
    queries, keys = tokens
    q, k, v = (torch.randn(batch, n, heads, width).to(dtype)
               for n, width in ((queries, d), (keys, d), (keys, e)))
    mixing = torch.rand(max(4, -(-queries // 6)), max(4, -(-keys // 6)))
    return [t.to(device) for t in (q, k, v, mixing)]


def call(kind, q, k, v, mixing, **options):
    if kind == "bidirectional":
        return mhla_torch.bidirectional(q, k, v, mixing, block=(6,), **options)
    if kind == "causal":
        return mhla_torch.causal(q, k, v, mixing, block=6, **options)
    return mhla_torch.linear(q, k, v, causal=kind == "linear_causal", **options)


# ---- what is built ------------------------------------------------------------------------------

def configure(folder, *options, **environment):
    """Configures the build. -> its status, what it printed, what Python would be told"""
    done = subprocess.run(
        ["cmake", "-S", Path(__file__).parents[1], "-B", folder, *options,
         f"-DPython_EXECUTABLE={sys.executable}"],
        env=os.environ | environment, capture_output=True, text=True)
    told = {}
    if (folder / "built.py").exists():
        exec((folder / "built.py").read_text(), told)
    return done.returncode, " ".join((done.stdout + done.stderr).split()), told


def test_without_the_option_there_are_no_kernels(tmp_path):
    status, _, told = configure(tmp_path, "-DMHLA_TORCH_CUDA=OFF")
    assert status == 0 and told["WITHOUT_CUDA"] == "MHLA_TORCH_CUDA is OFF"


@pytest.mark.skipif(torch.version.cuda is None, reason="PyTorch is for the CPU alone")
def test_without_nvcc_there_are_no_kernels(tmp_path):
    nowhere = {"CUDACXX": str(tmp_path / "nvcc")}
    status, _, told = configure(tmp_path / "auto", **nowhere)
    assert status == 0 and told["WITHOUT_CUDA"] == "no nvcc was found"
    status, printed, told = configure(tmp_path / "on", "-DMHLA_TORCH_CUDA=ON", **nowhere)
    assert status != 0 and not told
    assert "MHLA_TORCH_CUDA is ON, but no nvcc was found" in printed


@built_for_cuda
@pytest.mark.parametrize("version, reason", (
    (None, "PyTorch was built without it"),
    ("11.8", f"nvcc is {built.CUDA}, PyTorch is for CUDA 11.8"),
))
def test_nvcc_and_pytorch_are_of_one_cuda(tmp_path, version, reason):
    package = tmp_path / "torch"  # what the build asks of one
    package.mkdir()
    (package / "__init__.py").write_text(f"class version: cuda = {version!r}")
    for part in ("include", "lib"):
        (package / part).symlink_to(Path(torch.__path__[0]) / part)
    status, _, told = configure(tmp_path / "build", PYTHONPATH=str(tmp_path))
    assert status == 0 and told["WITHOUT_CUDA"] == reason


def test_says_why_there_are_no_kernels(monkeypatch):
    monkeypatch.setattr(built, "WITHOUT_CUDA", "no nvcc was found")
    monkeypatch.setattr(operators, "_WITHOUT_CUDA", operators._load_cuda())
    assert not mhla_torch.cuda_built()
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 4, 1, 64, device="cuda", dtype=torch.half)
        with pytest.raises(ValueError, match="mhla::linear: q is on cuda:0, but this mhla_torch "
                                             r"was built without CUDA \(no nvcc was found\)"):
            mhla_torch.linear(q, q, q)


def test_a_pytorch_of_another_cuda_does_not_load_them(monkeypatch):
    monkeypatch.setattr(built, "WITHOUT_CUDA", "")
    monkeypatch.setattr(built, "CUDA", "13.0.88")
    for version in (None, "12.6"):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert operators._load_cuda() == ("this mhla_torch was built for CUDA 13.0.88, and PyTorch "
                                          f"for {version}")


@built_for_cuda
def test_forwards_have_kernels():
    for name in ("bidirectional", "causal", "linear"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key("mhla::" + name, "CUDA")
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"mhla::{name}_backward", "CUDA")


# ---- without a device ---------------------------------------------------------------------------

@built_for_cuda
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ("bnhd", "bhnd"))
def test_traces_shapes(kind, layout):
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        q, k, v, mixing = tensors((128, 256), device="cuda:1")
        if layout == "bhnd":
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = call(kind, q, k, v, mixing, layout=layout)
    assert out.shape == (*q.shape[:3], 256) and out.stride() == v.stride()
    assert out.dtype is torch.bfloat16 and out.device == torch.device("cuda:1")


class Module(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def forward(self, q, k, v, mixing):
        return call(self.kind, q, k, v, mixing)


@built_for_cuda
@pytest.mark.parametrize("kind", KINDS)
def test_exports(kind):
    batch = {0: torch.export.Dim("batch")}
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        graph = torch.export.export(Module(kind), tuple(tensors(device="cuda")),
                                    dynamic_shapes=(batch, batch, batch, None)).graph
    operator = getattr(torch.ops.mhla, kind.removesuffix("_causal")).default
    out, = (node.meta["val"] for node in graph.nodes if node.target is operator)
    assert out.device == torch.device("cuda:0") and out.shape[1:] == (24, 3, 64)


@built_for_cuda
@pytest.mark.parametrize("name", ("q", "v", "mixing"))
def test_refuses_gradients(name):
    with torch._subclasses.FakeTensorMode():
        arguments = dict(zip(("q", "k", "v", "mixing"), tensors(device="cuda")))
        arguments[name].requires_grad_()
        with pytest.raises(RuntimeError, match=name + " requires a gradient, expected none"):
            call("bidirectional", **arguments)
        with torch.no_grad():
            call("bidirectional", **arguments)


@built_for_cuda
def test_autocast_is_that_of_the_device():
    try:
        torch.set_autocast_enabled("cuda", True)  # which torch.autocast leaves without a device
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        with torch._subclasses.FakeTensorMode(), torch.no_grad():
            for device, dtype in (("cuda", torch.bfloat16), ("cpu", torch.float32)):
                arguments = tensors(dtype=torch.float32, device=device)
                assert call("causal", *arguments).dtype is dtype
    finally:
        torch.set_autocast_enabled("cuda", False)


def kernel(name, *arguments, **options):
    """Calls the kernel for CUDA whatever its tensors are: it checks them before their device."""
    operator = getattr(torch.ops.mhla, name).default
    named = operators._named(operator, arguments, options)
    return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *named.values())


ON_CPU = "q is on cpu, expected a CUDA device"


@built_for_cuda
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_takes_what_there_is(widths, dtype):
    q, k, v, mixing = tensors(widths, (13, 24), dtype)
    packed = torch.randn(2, 24, 3, 3, 128).to(dtype).unbind(3)
    for layout, change in (("bnhd", lambda t: t), ("bhnd", lambda t: t.transpose(1, 2))):
        heads = [change(t) for t in (q, k, v)]
        same = [change(t) for t in (k, k, v)]
        with pytest.raises(RuntimeError, match=ON_CPU):
            kernel("bidirectional", *heads, mixing, [], [6], layout=layout, normalizer="none")
        with pytest.raises(RuntimeError, match=ON_CPU):
            kernel("bidirectional", *same, mixing[:4, :4].T, [4, 6], [2, 3], layout=layout,
                   normalizer="cross_query", feature_map="identity")
        with pytest.raises(RuntimeError, match=ON_CPU):
            kernel("causal", *same, mixing, 6, layout=layout, feature_map="elu_plus_one")
        with pytest.raises(RuntimeError, match=ON_CPU):
            kernel("linear", *(change(t) for t in packed), layout=layout)


def bidirectional(**wrong):
    """A call that is right but for some of its arguments."""
    q, k, v, mixing = tensors()
    return kernel("bidirectional", **{"q": q, "k": k, "v": v, "mixing": mixing, "grid": [4, 6],
                                      "block": [2, 3]} | wrong)


KEEP, ENDS = torch.ones(2, 24, dtype=torch.bool), torch.tensor([0, 24])
WIDE = torch.zeros(2, 24, 3, 72, dtype=torch.bfloat16)


@built_for_cuda
@pytest.mark.parametrize("wrong, sentence", (
    ({}, ON_CPU),
    ({"q": torch.zeros(2, 24, 3, 64)}, "q has type Float, expected BFloat16 or Half on CUDA"),
    ({"k": WIDE.half()}, "k has type Half, expected BFloat16"),
    ({"v": WIDE[0]}, "v has 3 axes, expected 4"),
    ({"v": WIDE}, r"\(q, v\) have widths \(64, 72\), expected \(64, 64\), \(72, 72\), "
                  r"\(128, 128\) or \(128, 256\) on CUDA"),
    ({"k": WIDE}, r"k has shape \[2, 24, 3, 72\], expected \[2, 24, 3, 64\]"),
    ({"q": WIDE[..., :64].expand(5, -1, -1, -1, -1)[:, 0]}, r"k has shape .* expected \[5, 24"),
    ({"q": WIDE[..., 1:65]}, "q has strides .* expected dense rows that begin at multiples of 16"),
    ({"k": torch.zeros(2, 24, 64, 3).mT.bfloat16()}, "k has strides .* expected dense rows"),
    ({"mixing": torch.zeros(4, 3)}, r"mixing has shape \[4, 3\], expected \[4, 4\]"),
    ({"mixing": torch.zeros(4, 4).double()}, "mixing has type Double, expected Float"),
    ({"grid": [], "block": [4]}, r"mixing has shape \[4, 4\], expected at least \[6, 6\]"),
    ({"grid": [4, 5]}, r"q has shape \[2, 24, 3, 64\], expected \[2, 20, 3, 64\]"),
    ({"block": [2]}, r"block has 1 sizes, expected 2"),
    ({"prefix": 2}, "prefix is 2, expected 0 on CUDA"),
    ({"feature_map": "exp"}, 'feature_map is "exp", expected relu, elu_plus_one or identity'),
    ({"normalizer": "sum"}, 'normalizer is "sum", expected none, key_sum or cross_query'),
    ({"layout": "nbhd"}, 'layout is "nbhd", expected bnhd or bhnd'),
    ({"normalizer_q": WIDE}, "normalizer_q is given, expected none on CUDA"),
    ({"normalizer_k": WIDE}, "normalizer_k is given, expected none on CUDA"),
    ({"query_mask": KEEP}, "query_mask is given, expected none on CUDA"),
    ({"key_mask": KEEP}, "key_mask is given, expected none on CUDA"),
    ({"query_offsets": ENDS}, "query_offsets is given, expected none on CUDA"),
    ({"key_offsets": ENDS}, "key_offsets is given, expected none on CUDA"),
))
def test_errors_say_what_there_is(wrong, sentence):
    with pytest.raises(RuntimeError, match="mhla::.*" + sentence):
        bidirectional(**wrong)


@built_for_cuda
def test_causal_calls_refuse_what_reads_the_future():
    q, k, v, mixing = tensors()
    for name, blocks in (("causal", (mixing, 6)), ("linear", (True,))):
        with pytest.raises(RuntimeError, match="op has a cross-query denominator"):
            kernel(name, q, k, v, *blocks, normalizer="cross_query")
    with pytest.raises(RuntimeError, match=ON_CPU):
        kernel("linear", q, k, v, normalizer="cross_query")


# ---- on a device --------------------------------------------------------------------------------

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 1.5e-3}  # of the root mean square


def expect_near(out, exact):
    """out is `exact` [.] in float64, but for rounding to its type on the way."""
    error = (out.cpu().double() - exact).square().mean().sqrt() / exact.square().mean().sqrt()
    assert error < TOLERANCE[out.dtype]


def expect_right(function, *arguments):
    """A function is on the device what it is on the CPU in float64."""
    out = function(*(t.cuda() for t in arguments))
    assert out.is_cuda and out.dtype is arguments[0].dtype
    expect_near(out, function(*(t.cpu().double() for t in arguments)))


@on_device
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("dtype", TOLERANCE)
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
    with pytest.raises(RuntimeError, match="mixing is on cpu, expected cuda:0"):
        call("causal", q, k, v, mixing.cpu())
    with pytest.raises(RuntimeError, match="k is on cpu, expected cuda:0"):
        call("causal", q, k.cpu(), v, mixing)


@on_device
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two devices are there")
@torch.no_grad()
def test_runs_on_the_device_of_its_tensors():
    arguments = tensors(tokens=(600, 600), device="cuda:1")
    out = call("causal", *arguments)
    assert out.device == torch.device("cuda:1") and torch.cuda.current_device() == 0
    expect_near(out, call("causal", *(t.cpu().double() for t in arguments)))

"""The operators on CUDA, without a device: built kernels, shapes for tracing, and errors before CUDA
is called.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mhla_torch
from cuda_calls import built_for_cuda, call, extras, KINDS, LAYERS, TAKEN, tensors
from mhla_torch import built, kernels, operators, registration

# ---- building -----------------------------------------------------------------------------------

def configure(folder, *options, **environment):
    """Configures the build. -> its status, its output, and the settings that Python would read"""
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
    monkeypatch.setattr(kernels, "WITHOUT_CUDA", kernels.load_cuda())
    assert not mhla_torch.cuda_built()
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 4, 1, 64, device="cuda", dtype=torch.half)
        with pytest.raises(ValueError, match="mhla::linear: q is on cuda:0, but this mhla_torch "
                                             r"was built without CUDA \(no nvcc was found\)"):
            mhla_torch.linear(q, q, q, backend="kernels")
        assert mhla_torch.explain(mhla_torch.linear, q, q, q).backend == "formula"


def test_a_pytorch_of_another_cuda_does_not_load_them(monkeypatch):
    monkeypatch.setattr(built, "WITHOUT_CUDA", "")
    monkeypatch.setattr(built, "CUDA", "13.0.88")
    for version in (None, "12.6"):
        monkeypatch.setattr(torch.version, "cuda", version)
        assert kernels.load_cuda() == ("this mhla_torch was built for CUDA 13.0.88, and PyTorch "
                                          f"for {version}")


@built_for_cuda
def test_forwards_and_backwards_have_kernels():
    for name in ("bidirectional", "causal", "linear"):
        for operator in (name, name + "_backward"):
            assert torch._C._dispatch_has_kernel_for_dispatch_key("mhla::" + operator, "CUDA")


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


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_gets_the_output(with_kernels, kind):
    """Checks that on CUDA the forward's output is saved and passed to the backward as `out`."""
    name = kind.removesuffix("_causal")
    with torch._subclasses.FakeTensorMode(), torch.autograd.graph.saved_tensors_hooks(
            lambda t: saved.append(t) or t, lambda t: t):
        saved = []
        q, k, v, mixing = (t.requires_grad_() for t in tensors(device="cuda"))
        for save in ("inputs", "summaries") if name != "linear" else (None,):
            saved.clear()
            out = call(kind, q, k, v, mixing, **({"save": save} if save else {}))
            assert len(saved) == (4 if name == "linear" else 5) and saved[-1].shape == out.shape
            if not save or save == "inputs":  # what a gain normalises is computed again, and a
                # backward without denominators reads no output
                saved.clear()
                call(kind, q, k, v, mixing, normalizer="none", **extras(device="cuda"))
                assert len(saved) == (7 if name == "linear" else 8)
                saved.clear()
                call(kind, q, k, v, mixing, gain=extras(device="cuda")["gain"])
                assert len(saved) == (4 if name == "linear" else 5)
                saved.clear()
                call(kind, q, k, v, mixing, normalizer="none")
                assert len(saved) == (3 if name == "linear" else 4)
            if torch.cuda.is_available():  # which autograd asks for the device of a gradient
                used = (q, k, v) if name == "linear" else (q, k, v, mixing)
                for g, t in zip(torch.autograd.grad(out.sum(), used), used):
                    assert g.shape == t.shape and g.dtype is t.dtype and g.is_cuda


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
    """Calls the kernel for CUDA with tensors on any device: arguments are checked before."""
    operator = getattr(torch.ops.mhla, name).default
    named = registration._named(operator, arguments, options)
    return operator.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA), *named.values())


ANGLES = torch.ones(24, 64)
ENDS = torch.tensor([0, 10, 24])
KEEP = torch.ones(2, 24, dtype=torch.bool)
ON_CPU = "q is on cpu, expected a CUDA device"


@built_for_cuda
@pytest.mark.parametrize("widths, dtype", TAKEN)
def test_takes_what_there_is(widths, dtype):
    q, k, v, mixing = tensors(widths, (13, 24), dtype)
    packed = torch.randn(2, 24, 3, 3, 128).to(dtype).unbind(3)
    ends = ENDS.int()
    sequences = {"query_offsets": ends, "key_offsets": ends, "max_queries": 14, "max_keys": 14}
    for layout, change in (("bnhd", lambda t: t), ("bhnd", lambda t: t.transpose(1, 2))):
        heads = [change(t) for t in (q, k, v)]
        same = [change(t) for t in (k, k, v)]
        with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
            kernel("bidirectional", *heads, mixing, [], [6], layout=layout, normalizer="none")
        with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
            kernel("bidirectional", *same, mixing[:4, :4].T, [4, 6], [2, 3], layout=layout,
                   normalizer="cross_query", feature_map="identity")
        with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
            kernel("causal", *same, mixing, 6, layout=layout, feature_map="elu_plus_one")
        with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
            kernel("linear", *(change(t) for t in packed), layout=layout)
        with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
            kernel("causal", *(t[:1] for t in same), mixing, 6, layout=layout, **sequences)


@built_for_cuda
@pytest.mark.parametrize("widths, dtype", TAKEN)
def test_takes_angles_gain_and_gate(widths, dtype):
    q, k, v, mixing = tensors(widths, (13, 24), dtype)
    both = extras(widths, (13, 24), dtype)
    alike = both | {name: t for name, t in extras(widths, dtype=dtype).items() if name != "gain"}
    odd = torch.cat([both["gain"], both["gain"]])[1:widths[1] + 1]  # not at a multiple of 8 bytes
    for layout, change in (("bnhd", lambda t: t), ("bhnd", lambda t: t.transpose(1, 2))):
        q1, k1, v1 = (change(t) for t in (q, k, v))
        for name, arguments, options in (
                ("bidirectional", (q1, k1, v1, mixing, [], [6]), both | {"normalizer": "key_sum"}),
                ("bidirectional", (k1, k1, v1, mixing[:4, :4], [4, 6], [2, 3]),
                 alike | {"normalizer": "cross_query", "gain": odd}),
                ("causal", (k1, k1, v1, mixing, 6), alike | {"normalizer": "none"}),
                ("linear", (q1, k1, v1), both), ("linear", (k1, k1, v1), {"gain": both["gain"]}),
                ("linear", (k1, k1, v1, True), alike | {"normalizer": "none", "relu_eps": 0.})):
            options = {"layout": layout} | options
            if "gate" in options:
                options["gate"] = change(options["gate"])
            dout = torch.zeros(*arguments[0].shape[:3], widths[1], dtype=dtype)
            for operator, tensor in ((name, ()), (name + "_backward", (dout,))):
                with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
                    kernel(operator, *tensor, *arguments, **options)


@built_for_cuda
@pytest.mark.parametrize("layout", ("bnhd", "bhnd"))
def test_gradients_have_the_shapes_of_their_tensors(layout):
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        q, k, v, mixing = tensors((128, 256), device="cuda")
        more = extras((128, 256), device="cuda")
        gate = more.pop("gate")
        if layout == "bhnd":
            q, k, v, gate = (t.transpose(1, 2) for t in (q, k, v, gate))
        out = torch.ops.mhla.causal_backward(gate, q, k, v, mixing, 6, layout=layout, gate=gate,
                                             normalizer="none", **more)
    for gradient, t in zip(out, (q, k, v, mixing, None, None, None, None, more["gain"], gate)):
        assert gradient.shape == (t.shape if t is not None else (0,))
        assert t is None or (gradient.dtype, gradient.stride()) == (t.dtype, t.stride())


@pytest.mark.parametrize("training", (False, True))
@pytest.mark.parametrize("autocast", (False, True))
@pytest.mark.parametrize("make, channels", LAYERS, ids=range(len(LAYERS)))
def test_layers_take_the_kernels(with_kernels, monkeypatch, make, channels, training, autocast):
    """Checks that layers call the fused kernels once, with everything that they take over."""
    calls, run = [], operators._run
    monkeypatch.setattr(operators, "_run", lambda name, named: calls.append((name, named)) or
                        run(name, named))
    try:
        torch.set_autocast_enabled("cuda", autocast)
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        torch.set_default_dtype(torch.float32 if autocast else torch.bfloat16)
        layer = make().train(training)
        layer.backend = "kernels"
        with torch._subclasses.FakeTensorMode(), torch.set_grad_enabled(training):
            members = {name: torch.empty(t.shape, dtype=t.dtype, device="cuda",
                                         requires_grad=t.requires_grad)
                       for name, t in (*layer.named_parameters(), *layer.named_buffers())}
            x = torch.empty(2, 64, channels, device="cuda")
            out = torch.func.functional_call(layer, members, (x,))
    finally:
        torch.set_autocast_enabled("cuda", False)
        torch.set_default_dtype(torch.float32)
    assert out.dtype is torch.bfloat16 and out.is_cuda
    (name, named), = calls
    assert named["q"].dtype is torch.bfloat16
    if not isinstance(layer, mhla_torch.Vision):
        assert {"query_angles", "key_angles", "gain", "gate"} <= named.keys()
        assert named["query_angles"].dtype is torch.float32


@pytest.mark.parametrize("make, channels", (
    (lambda: mhla_torch.Vision(128, 2, (8, 8), (4, 4), "blocks", qk_norm=True), 128),
    (lambda: mhla_torch.Vision(144, 2, (8, 8), (4, 4), "raster"), 144),
    (lambda: mhla_torch.Video(128, 2, (4, 4, 4), (2, 2, 2), lepe=True), 128),
    (lambda: mhla_torch.Video(256, 2, (4, 4, 4), (2, 2, 2), normalize=True), 256),
    (lambda: mhla_torch.Language(192, 2, 16, decays=2), 192),
    (lambda: mhla_torch.Language(192, 2, 16, 4, convolution=4), 192),
    (lambda: mhla_torch.Language(512, 2, 16, 4), 512)))
def test_layers_of_float32_take_the_kernels(with_kernels, monkeypatch, make, channels):
    """Checks that PyTorch's operations rotate, normalise and gate around one call of kernels."""
    calls, run = [], operators._run
    monkeypatch.setattr(operators, "_run", lambda name, named: calls.append(named) or
                        run(name, named))
    layer = make()
    layer.backend = "kernels"
    with torch._subclasses.FakeTensorMode():
        members = {name: torch.empty(t.shape, dtype=t.dtype, device="cuda", requires_grad=True)
                   for name, t in (*layer.named_parameters(), *layer.named_buffers())}
        x = torch.empty(2, 64, channels, device="cuda")
        out = torch.func.functional_call(layer, members, (x,))
    named, = calls
    assert out.dtype is named["q"].dtype is torch.float32 and out.is_cuda
    assert not {"query_angles", "key_angles", "gain", "gate"} & named.keys()


def bidirectional(**wrong):
    """A valid call except for the arguments `wrong`."""
    q, k, v, mixing = tensors()
    return kernel("bidirectional", **{"q": q, "k": k, "v": v, "mixing": mixing, "grid": [4, 6],
                                      "block": [2, 3]} | wrong)


WIDE = torch.zeros(2, 24, 3, 72, dtype=torch.bfloat16)
FLOATS = {name: torch.zeros(2, 24, 3, 64) for name in "qkv"}


@built_for_cuda
@pytest.mark.parametrize("wrong, sentence", (
    ({}, ON_CPU),
    ({"q": torch.zeros(2, 24, 3, 64).double()},
     "q has type Double, expected BFloat16, Half or Float on CUDA"),
    ({"q": torch.zeros(2, 24, 3, 64)}, "k has type BFloat16, expected Float"),
    (FLOATS | {"query_angles": ANGLES, "key_angles": ANGLES},
     "query_angles is given for tensors of float, expected bfloat16 or half"),
    ({name: torch.zeros(2, 24, 3, 256) for name in "qkv"},
     r"\(q, v\) have widths \(256, 256\), expected one of .*, \(128, 256\) of Float on CUDA"),
    ({"k": WIDE.half()}, "k has type Half, expected BFloat16"),
    ({"v": WIDE[0]}, "v has 3 axes, expected 4"),
    ({"v": WIDE}, r"\(q, v\) have widths \(64, 72\), expected one of \(32, 32\), \(48, 48\), "),
    ({"k": WIDE}, r"k has shape \[2, 24, 3, 72\], expected \[2, 24, 3, 64\]"),
    ({"q": WIDE[..., :64].expand(5, -1, -1, -1, -1)[:, 0]}, r"k has shape .* expected \[5, 24"),
    ({"q": WIDE[..., 1:65]}, "q has strides .* expected dense rows that begin at multiples of 16"),
    ({"k": torch.zeros(2, 24, 64, 3).mT.bfloat16()}, "k has strides .* expected dense rows"),
    ({"mixing": torch.zeros(4, 3)}, r"mixing has shape \[4, 3\], expected \[4, 4\]"),
    ({"mixing": torch.zeros(4, 4).double()}, "mixing has type Double, expected Float"),
    ({"grid": [], "block": [4]}, r"mixing has shape \[4, 4\], expected at least \[6, 6\]"),
    ({"grid": [4, 5]}, r"q has shape \[2, 24, 3, 64\], expected \[2, 20, 3, 64\]"),
    ({"block": [2]}, r"block has 1 sizes, expected 2"),
    ({"prefix": 4, "grid": [4, 5], "mixing": torch.zeros(5, 5)}, ON_CPU),
    ({"prefix": 4, "grid": [4, 5]}, r"mixing has shape \[4, 4\], expected \[5, 5\]"),
    ({"prefix": 4}, r"q has shape \[2, 24, 3, 64\], expected \[2, 28, 3, 64\]"),
    ({"prefix": -1}, "prefix is -1, expected at least 0"),
    ({"feature_map": "exp"}, 'feature_map is "exp", expected relu, elu_plus_one or identity'),
    ({"normalizer": "sum"}, 'normalizer is "sum", expected none, key_sum or cross_query'),
    ({"layout": "nbhd"}, 'layout is "nbhd", expected bnhd or bhnd'),
    ({"normalizer_q": WIDE}, "normalizer_q is given, expected none on CUDA"),
    ({"normalizer_k": WIDE}, "normalizer_k is given, expected none on CUDA"),
    ({"query_mask": KEEP, "key_mask": KEEP}, ON_CPU),
    ({"query_mask": KEEP[:, 1:]}, r"query_mask has shape \[2, 23\], expected \[2, 24\]"),
    ({"key_mask": KEEP.long()}, "key_mask has type Long, expected Bool"),
    ({"query_offsets": ENDS}, "key_offsets is absent, expected both query_offsets and"),
    ({"query_offsets": ENDS, "key_offsets": ENDS}, "query_offsets has type Long, expected Int"),
    ({"query_offsets": ENDS.int(), "key_offsets": ENDS.int()}, "q has 2 batch items, expected 1"),
    ({"query_angles": ANGLES}, "key_angles is absent, expected both query_angles and key_angles"),
    ({"query_angles": ANGLES[:20], "key_angles": ANGLES},
     r"rotary.query_angles has shape \[20, 64\], expected \[24, 64\]"),
    ({"query_angles": ANGLES, "key_angles": ANGLES[:, :32]},
     r"rotary.key_angles has shape \[24, 32\], expected \[24, 64\]"),
    ({"query_angles": ANGLES, "key_angles": ANGLES.double()}, "key_angles has type Double"),
    ({"q": WIDE, "k": WIDE, "v": WIDE, "query_angles": ANGLES, "key_angles": ANGLES},
     "query_angles is given for D of 72, expected a multiple of 16"),
    ({"gate": WIDE[..., :64]}, "gate is given without a gain, expected both, or a gain alone"),
    ({"gain": torch.ones(65)}, "gain has 65 elements, expected 64"),
    ({"gain": torch.ones(64), "gate": WIDE}, r"gate has shape \[2, 24, 3, 72\], expected"),
    ({"gain": torch.ones(64), "gate": WIDE.half()}, "gate has type Half, expected BFloat16"),
    ({"gain": torch.ones(64), "norm_eps": -1.}, "op.norm_eps is -1.0*, expected >= 0"),
))
def test_errors_say_what_there_is(wrong, sentence):
    with pytest.raises((ValueError, RuntimeError), match="mhla::.*" + sentence):
        bidirectional(**wrong)


@built_for_cuda
def test_causal_calls_refuse_what_reads_the_future():
    q, k, v, mixing = tensors()
    for name, blocks in (("causal", (mixing, 6)), ("linear", (True,))):
        with pytest.raises((ValueError, RuntimeError), match="op has a cross-query denominator"):
            kernel(name, q, k, v, *blocks, normalizer="cross_query")
        with pytest.raises((ValueError, RuntimeError), match="op has a denominator, expected none"):
            kernel(name, q, k, v, *blocks, query_angles=ANGLES, key_angles=ANGLES)
    with pytest.raises((ValueError, RuntimeError), match=ON_CPU):
        kernel("linear", q, k, v, normalizer="cross_query")

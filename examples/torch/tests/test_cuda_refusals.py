"""Calls that the kernels for CUDA take, and reasons why they refuse others, with fake tensors."""

import pytest
import torch

import mhla_torch
from cuda_calls import call, extras, KINDS, tensors, WIDTHS
from mhla_torch import operators


def explained(kind="bidirectional", widths=(64, 64), dtype=torch.bfloat16, gradient=False,
              change=lambda t: t, **options):
    """The explanation of a call of fake tensors on CUDA."""
    with torch._subclasses.FakeTensorMode():
        q, k, v, mixing = tensors(widths, dtype=dtype, device="cuda")
        q.requires_grad_(gradient)
        made = {id(t): torch.empty(t.shape, dtype=t.dtype, device="cuda",
                                   requires_grad=t.requires_grad)
                for t in options.values() if isinstance(t, torch.Tensor)}
        options = {name: made.get(id(t), t) for name, t in options.items()}
        return call(kind, change(q), k, v, mixing, explain=True, **options)


FAKE = {"normalizer_q": torch.ones(2, 24, 3, 64, dtype=torch.bfloat16), "query_map": torch.ones(9)}
ANGLES = torch.ones(24, 64)
ENDS = torch.tensor([0, 10, 24])
PACKED = {"query_offsets": ENDS, "key_offsets": ENDS, "max_queries": 14}
KEEP = torch.ones(2, 24, dtype=torch.bool)


@pytest.mark.parametrize("wrong, reason", (
    ({"dtype": torch.float64},
     "q has type torch.float64, expected bfloat16, float16 or float32 on CUDA"),
    ({"dtype": torch.float32, "widths": (256, 256)},
     "q and v have widths (256, 256), expected one of (32, 32), (48, 48), (48, 96), (64, 64), "
     "(72, 72), (96, 48), (96, 96), (128, 128), (128, 256) in float32 on CUDA"),
    (PACKED | {"dtype": torch.float32, "query_angles": ANGLES, "key_angles": ANGLES},
     "query_angles is given with a normalizer and packed sequences, expected none in float32 on "
     "CUDA"),
    ({"widths": (64, 72)}, "q and v have widths (64, 72), expected one of (32, 32), (48, 48), "
                           "(48, 96), (64, 64), (72, 72), (96, 48), (96, 96), (128, 128), "
                           "(128, 256), (256, 256) on CUDA"),
    ({"feature_map": "exp"},
     'feature_map is "exp", expected relu, elu_plus_one or identity on CUDA'),
    ({"change": lambda t: t[:, :0]}, "q has no tokens, expected some on CUDA"),
    ({"change": lambda t: t.mT.contiguous().mT},
     "q has other rows than dense ones at multiples of 16 bytes"),
    ({"query_angles": ANGLES, "key_angles": ANGLES, "widths": (72, 72)},
     "query_angles is given with a width of 72, expected a multiple of 16 on CUDA"),
    ({"query_angles": ANGLES, "key_angles": ANGLES.clone().requires_grad_()},
     "key_angles requires a gradient, expected none on CUDA"),
    ({"query_offsets": ENDS, "key_offsets": ENDS},
     "max_queries is absent, expected the tokens of the longest sequence on CUDA"),
    (PACKED | {"key_offsets": ENDS.clone()},
     "max_keys is absent, expected the tokens of the longest sequence on CUDA"),
    (PACKED | {"query_angles": ANGLES, "key_angles": ANGLES},
     "query_angles is given with packed sequences, expected none on CUDA"),
    *(({name: t}, name + " is given, expected none on CUDA") for name, t in FAKE.items()),
), ids=lambda x: x if isinstance(x, str) else next(iter(x)))
def test_kernels_refuse_before_the_call(with_kernels, wrong, reason):
    assert explained(**wrong) == mhla_torch.Explanation("formula", "", reason)
    with pytest.raises(ValueError) as error:
        explained(**wrong, backend="kernels")
    expected = f'mhla::bidirectional: {reason}; backend="formula" takes the call'
    assert str(error.value) == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("gradient", (False, True))
def test_kernels_take_the_rest(with_kernels, kind, widths, gradient):
    for options in ({}, {"feature_map": "identity", "normalizer": "none"},
                    {"feature_map": "elu_plus_one", "eps": 0.5, "dtype": torch.float16}):
        assert explained(kind, widths, gradient=gradient, **options).backend == "kernels"
    for more in ({"normalizer": "cross_query"}, {"prefix": 2}):
        assert explained(gradient=gradient, **more).backend == "kernels"
    if widths[0] <= 128:
        angles = dict.fromkeys(("query_angles", "key_angles"), torch.ones(24, widths[0]))
        normed = extras(widths, dtype=torch.float32)
        for more in ({}, angles, angles | {"normalizer": "none"}, normed, angles | normed):
            assert explained(kind, widths, torch.float32, gradient, **more).backend == "kernels"
    normed = extras(widths)
    if "causal" in kind and widths[0] == 256:
        assert explained(kind, widths, **normed).reason == (
            "gain is given with a width of 256, expected none in causal forms on CUDA")
        del normed["gain"], normed["gate"]
    for more in (normed | {"query_mask": KEEP, "key_mask": KEEP}, PACKED):
        assert explained(kind, widths, gradient=gradient, normalizer="none",
                         **more).backend == "kernels"


def test_kernels_of_rotated_floats_read_rows_of_v_alone(with_kernels, monkeypatch):
    asked = []
    monkeypatch.setattr(torch.ops.mhla, "bidirectional_form",
                        lambda **named: asked.append(named) or "kernels")
    more = {"normalizer": "none", "dtype": torch.float32, "change": lambda t: t.mT.contiguous().mT,
            "gain": torch.ones(64), "gate": torch.ones(2, 24, 3, 64)}
    assert explained(query_angles=ANGLES, key_angles=ANGLES, **more).backend == "kernels"
    assert asked[0]["q"].is_contiguous()
    assert not {"query_angles", "key_angles", "gain", "gate"} & asked[0].keys()
    assert explained(**more).reason == "q has other rows than dense ones at multiples of 16 bytes"


def test_angles_are_learned_where_gradients_are_recorded(with_kernels):
    learned = {"query_angles": ANGLES, "key_angles": ANGLES.clone().requires_grad_()}
    assert explained(**learned).backend == "formula"
    with torch.no_grad():
        assert explained(**learned).backend == "kernels"


@pytest.mark.parametrize("kind", KINDS)
def test_causal_kernels_rotate_without_denominators(with_kernels, kind):
    took = explained(kind, **extras())
    assert (took.backend == "formula") == ("causal" in kind)
    assert took.reason in ("", "query_angles is given with a normalizer, expected none in causal "
                               "forms on CUDA")


def test_causal_kernels_read_one_tensor_of_offsets(with_kernels):
    for kind in ("causal", "linear_causal"):
        took = explained(kind, **(PACKED | {"key_offsets": ENDS.clone()}))
        assert took.reason == ("key_offsets is another tensor than query_offsets, expected the "
                               "same in causal forms on CUDA")


@pytest.mark.parametrize("kind", ("bidirectional", "causal"))
def test_packed_sequences_save_inputs_whatever_is_asked(with_kernels, kind):
    with torch._subclasses.FakeTensorMode():
        ends = torch.empty(4, dtype=torch.int32, device="cuda")
        leaves = [t.requires_grad_() for t in tensors(batch=1, device="cuda")]
        out = call(kind, *leaves, query_offsets=ends, key_offsets=ends, max_queries=14,
                   save="summaries", backend="kernels")
    assert out.shape == (1, 24, 3, 64) and out.requires_grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", (torch.int32, torch.int64))
def test_offsets_stay_on_the_device(with_kernels, monkeypatch, kind, dtype):
    """Checks that tracing a call, where tensors have no numbers, gives one tensor of int32."""
    calls, run = [], operators._run
    monkeypatch.setattr(operators, "_run", lambda name, named: calls.append(named) or
                        run(name, named))
    with torch._subclasses.FakeTensorMode(), torch.no_grad():
        ends = torch.empty(4, dtype=dtype, device="cuda")
        out = call(kind, *tensors(batch=1, device="cuda"), query_offsets=ends, key_offsets=ends,
                   max_queries=14)
    assert out.shape == (1, 24, 3, 64)
    named, = calls
    assert named["key_offsets"] is named["query_offsets"]
    assert named["query_offsets"].dtype is torch.int32 and named["max_keys"] == 14

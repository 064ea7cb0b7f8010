"""MHLA as a module, and the attention of a vision transformer replaced by it."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

from mhla_torch import MHLA, bidirectional, causal, locality, replace_attention, resize
from mhla_torch.attention import ViTAttention
from tiny_vit import TinyViT


class Model(nn.Module):
    """A model that calls attention: heads first, from a packed projection."""

    def __init__(self, attention):
        super().__init__()
        self.qkv, self.attention = nn.Linear(16, 48), attention

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.attention(q, k, v).transpose(1, 2).flatten(2)


def image_model(**options):
    torch.manual_seed(0)
    return Model(MHLA((4, 6), (2, 3), **options)).double()


@pytest.mark.parametrize("prefix", (0, 1, 3))
def test_takes_the_place_of_softmax_attention(prefix):
    model = image_model(prefix=prefix)
    x = torch.randn(2, 24 + prefix, 16, dtype=torch.float64)
    q, k, v = model.qkv(x).unflatten(-1, (3, 2, 8)).unbind(2)
    expected = bidirectional(q, k, v, model.attention.mixing, grid=(4, 6), block=(2, 3),
                             prefix=prefix, backend="formula")
    torch.testing.assert_close(model(x), expected.flatten(2), rtol=1e-12, atol=1e-12)
    softmax = Model(functional.scaled_dot_product_attention).double()
    assert softmax(x).shape == model(x).shape and softmax(x).stride() == model(x).stride()


def test_starts_as_locality_with_rows_that_sum_to_one():
    mixing = image_model().attention.mixing
    torch.testing.assert_close(mixing, locality((2, 2)), rtol=1e-6, atol=1e-7)
    for prefix in (0, 2):
        sums = image_model(prefix=prefix).attention.mixing.sum(1)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-6, atol=0)


def test_a_causal_one_serves_shorter_sequences():
    module = MHLA(64, 8, causal=True)
    q, k, v = torch.randn(3, 2, 4, 20, 8).unbind(0)  # [B,H,N,D]
    out = module(q, k, v)
    assert torch.equal(out, causal(q, k, v, module.mixing, block=8, layout="bhnd"))
    masked = {"key_mask": torch.arange(20).expand(2, -1) % 3 < 2}
    expected = causal(q, k, v, module.mixing, block=8, layout="bhnd", **masked)
    assert torch.equal(module(q, k, v, **masked), expected) and not torch.equal(out, expected)
    later = [torch.cat([t, torch.full_like(t, torch.nan)], 2) for t in (q, k, v)]
    assert torch.equal(module(*later)[:, :, :20][:, :, :16], out[:, :, :16])


def test_constrains_its_mixing_matrix():
    module = MHLA(64, 8, causal=True)
    with torch.no_grad():
        module.mixing.copy_(torch.randn(8, 8))
    module.constrain_()
    assert module.mixing.min() == 0 and module.mixing.max() <= 1
    assert not module.mixing.triu(1).any()


@pytest.mark.parametrize("tokens, block, options", (
    ((4, 6), (2, 3), {}), ((4, 6), (2, 3), {"prefix": 2}), (24, 4, {"causal": True}),
    ((4, 6), (2, 3), {"prefix": 1, "offsets": (3, 3)}),
    ((4, 6), (2, 3), {"pattern": torch.ones(4, 4, dtype=torch.bool).tril()}),
    (24, 4, {"causal": True, "offsets": (3,),
             "pattern": torch.ones(6, 6, dtype=torch.bool).triu(-2)}),
    (24, 4, {"causal": True, "decays": 3})))
@pytest.mark.filterwarnings("ignore::mhla_torch.FormulaWarning")
def test_heads_may_have_parameters_of_their_own(tokens, block, options):
    torch.manual_seed(0)
    module, *alone = (MHLA(tokens, block, heads=heads, **options).double() for heads in (2, 0, 0))
    assert module.mixing.equal(torch.stack([one.mixing for one in alone]))
    with torch.no_grad():
        module.mixing.copy_(torch.rand_like(module.mixing) + 0.1)
        for mixing, one in zip(module.mixing, alone):
            one.mixing.copy_(mixing)
    for each in (module, *alone):
        each.constrain_()
        if "pattern" not in options and not options.get("causal"):
            each.resize_((8, 3), block)  # as many tokens
    q, k, v = torch.randn(3, 1, 2, 24 + options.get("prefix", 0), 4, dtype=torch.float64)
    out = module(q, k, v)
    for h, one in enumerate(alone):
        torch.testing.assert_close(out[:, h:h + 1], one(*(t[:, h:h + 1] for t in (q, k, v))))
    with pytest.raises(ValueError, match="MHLA: heads is -1, expected"):
        MHLA(tokens, block, heads=-1)


def test_is_made_on_the_default_device():
    for causal, tokens, block in ((False, (4, 2), (2, 2)), (True, 8, 2)):
        with torch.device("meta"):
            assert MHLA(tokens, block, causal=causal).mixing.is_meta


def test_refuses_tensors_that_it_would_neither_train_nor_move():
    with pytest.raises(ValueError, match="MHLA: gain is a tensor, expected it in the call"):
        MHLA(16, 4, causal=True, gain=torch.ones(4))


def test_refuses_a_causal_image():
    with pytest.raises(ValueError, match="causal attention is of a sequence"):
        MHLA((4, 4), (2, 2), causal=True)


@pytest.mark.parametrize("tokens, block, options", (
    ((4, 4), (2,), {}), ((4,), (2, 2), {}), ((4, 4), (0, 2), {}), ((4, -4), (2, 2), {}),
    ((2,) * 4, (1,) * 4, {}), (0, 4, {}), (4, 0, {"causal": True})))
def test_refuses_sizes_that_do_not_fit(tokens, block, options):
    with pytest.raises(ValueError, match="MHLA: tokens is .* expected one to three sizes each"):
        MHLA(tokens, block, **options)
    with pytest.raises(ValueError, match="MHLA: prefix is -1, expected at least 0"):
        MHLA((4, 4), (2, 2), prefix=-1)


def decaying(blocks, length):
    """Coefficients exp(-distance / length) between blocks, with rows that sum to 1."""
    places = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in blocks))
    weights = torch.exp(-torch.cdist(places, places) / length)
    return weights / weights.sum(1, keepdim=True)


def test_resizes_a_function_of_the_distance():
    m = decaying((4, 4), 1.5)
    for after, options, expected in (((8, 8), {}, decaying((8, 8), 3)),
                                     ((8, 8), {"unit": "block"}, decaying((8, 8), 1.5)),
                                     ((4, 4), {}, m)):
        resized = resize(m, (4, 4), after, **options)
        assert (resized - expected).norm() < 0.02 * expected.norm()
        torch.testing.assert_close(resized.sum(1), torch.ones(len(resized)).double())
    columns = resize(3 * m.T, (4, 4), (2, 8), sum_to_one="columns")
    torch.testing.assert_close(columns.sum(0), torch.full((16,), 3.).double())
    assert resize(m.bfloat16(), (4, 4), (3, 2)).dtype is torch.bfloat16
    for wrong, sentence in (({"from_blocks": (4, 5)}, "has shape|is 16 x 16"), ({"unit": "metre"},
                            'unit is "metre", expected extent or block'),
                            ({"to_blocks": (0, 2)}, "expected sizes >= 1"),
                            ({"sum_to_one": "all"}, 'sum_to_one is "all", expected rows')):
        with pytest.raises((ValueError, RuntimeError), match="resize.*" + sentence):
            resize(**{"mixing": m, "from_blocks": (4, 4), "to_blocks": (4, 4)} | wrong)


@pytest.mark.parametrize("prefix", (0, 1))
def test_a_module_resizes_its_matrix(prefix):
    module = MHLA((8, 16), (2, 4), prefix=prefix).double()
    inside = decaying((4, 4), 1.5) * (1 - prefix / 17)
    with torch.no_grad():
        module.mixing[prefix:, prefix:] = inside
    module.mixing.requires_grad_(False)
    module.resize_((16, 8), (2, 1))
    assert not module.mixing.requires_grad
    expected = MHLA((16, 8), (2, 1), prefix=prefix)
    assert module.mixing.shape == expected.mixing.shape and module.grid == (16, 8)
    torch.testing.assert_close(module.mixing.sum(1), expected.mixing.sum(1).double())
    assert torch.equal(module.mixing[prefix:, prefix:], resize(inside, (4, 4), (8, 8)))
    q, k, v = torch.randn(3, 1, 2, 128 + prefix, 4, dtype=torch.float64)
    out = bidirectional(q, k, v, module.mixing, grid=(16, 8), block=(2, 1), prefix=prefix,
                        layout="bhnd")
    assert torch.equal(module(q, k, v), out)
    with pytest.raises(ValueError, match="is of a sequence, expected an image"):
        MHLA(16, 4).resize_((4, 4))
    mixing = module.mixing
    module.resize_((32, 16), (4, 2))
    assert module.mixing is mixing and module.grid == (32, 16)


def test_exports_and_loads():
    model = image_model()
    x = torch.randn(2, 24, 16, dtype=torch.float64)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: batch}})
    assert any(node.target is torch.ops.mhla.bidirectional.default for node in program.graph.nodes)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for x in (x, torch.randn(5, 24, 16, dtype=torch.float64)):
        assert torch.equal(loaded(x), model(x))


def test_trains_alike_compiled_and_in_autocast():
    x = torch.randn(4, 24, 16)
    gradients = {}
    for name in ("eager", "compiled", "autocast"):
        torch.compiler.reset()
        model = image_model(feature_map="elu_plus_one").float()
        run = torch.compile(model, fullgraph=True) if name != "eager" else model
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            out = run(x)
        assert out.dtype is (torch.bfloat16 if name == "autocast" else torch.float32)
        out.float().square().sum().backward()
        gradients[name] = torch.cat([p.grad.flatten() for p in model.parameters()])
    scale = gradients["eager"].abs().max()
    assert (gradients["compiled"] - gradients["eager"]).abs().max() < 1e-5 * scale
    assert (gradients["autocast"] - gradients["eager"]).abs().max() < 3e-2 * scale


@pytest.mark.parametrize("class_token", (False, True))
def test_replaces_the_attention_of_a_vision_transformer(class_token):
    torch.manual_seed(0)
    model = TinyViT(size=16, class_token=class_token)
    weights = copy.deepcopy(model.state_dict())
    x = torch.randn(3, 1, 16, 16)
    before = model(x)
    assert replace_attention(model, block=(4, 4)) is model
    added = set(model.state_dict()) - set(weights)
    assert added == {f"blocks.{i}.attn.mhla.mixing" for i in range(2)}
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in weights.items())
    blocks = 4 + class_token
    assert model.blocks[0].attn.mhla.mixing.shape == (blocks, blocks)
    out = model(x)
    assert out.shape == before.shape and not torch.allclose(out, before)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), out, rtol=1e-5, atol=1e-5)


def test_replaces_an_attention_in_all_its_places():
    model = TinyViT(size=16)
    model.blocks[1].attn = model.again = model.blocks[0].attn
    replace_attention(model, block=(4, 4))
    assert isinstance(model.again, ViTAttention)
    assert model.again is model.blocks[0].attn is model.blocks[1].attn


def test_says_what_it_cannot_replace():
    with pytest.raises(ValueError, match="no module with qkv, proj and num_heads"):
        replace_attention(nn.Linear(2, 2), block=(2, 2))
    model = TinyViT(size=16)
    model.blocks[0].attn.attn_drop.p = 0.1
    with pytest.raises(ValueError, match="attn_drop is 0.1, expected 0"):
        replace_attention(model, block=(4, 4))
    model.blocks[0].attn.attn_drop.p = 0.0
    hook = model.blocks[0].attn.register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="has _forward_hooks, expected none"):
        replace_attention(model, block=(4, 4))
    hook.remove()
    replace_attention(model, block=(4, 4))
    with pytest.raises(ValueError, match="attn_mask or is_causal is set"):
        model.blocks[0].attn(torch.ones(1, 64, 32), attn_mask=torch.ones(64, 64))

"""replace_attention on models of timm, with random weights."""

import copy

import pytest
import torch

from mhla_torch import MHLA, bidirectional, replace_attention

timm = pytest.importorskip("timm")

SMALL = {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3, "num_classes": 5}
MODELS = {  # name: (options, tokens before the image)
    "vit_tiny_patch16_224": ({}, 1),
    "deit_tiny_patch16_224": ({}, 1),
    "deit_tiny_distilled_patch16_224": ({}, 2),
    "vit_small_patch14_reg4_dinov2": ({"patch_size": 16}, 5),
    "vit_base_patch16_siglip_224": ({"global_pool": "avg"}, 0),
}


def model_of(name="vit_tiny_patch16_224", **options):
    torch.manual_seed(0)
    return timm.create_model(name, pretrained=False, **(SMALL | options))


def images():
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_replaces_the_attention_of(name):
    options, prefix = MODELS[name]
    model = model_of(name, **options)
    weights = copy.deepcopy(model.state_dict())
    before = model.eval()(images())
    replace_attention(model, block=(2, 2))
    state = model.state_dict()
    assert set(state) - set(weights) == {f"blocks.{i}.attn.mhla.mixing" for i in range(2)}
    assert all(torch.equal(state[name], tensor) for name, tensor in weights.items())
    blocks = 4 + (prefix > 0)
    assert state["blocks.0.attn.mhla.mixing"].shape == (blocks, blocks)
    out = model(images())
    assert out.shape == before.shape and not torch.allclose(out, before)
    other = replace_attention(model_of(name, **options), block=(2, 2)).eval()
    with torch.no_grad():
        other.blocks[0].attn.mhla.mixing.uniform_()
    other.load_state_dict(state)
    assert torch.equal(other(images()), out)
    model.train()(images()).sum().backward()
    assert all(p.grad is not None for n, p in model.named_parameters() if "pos_embed" not in n)


def test_compiles_and_recomputes():
    model = replace_attention(model_of(), block=(2, 2)).eval()
    out = model(images())
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(images()), out,
                               rtol=1e-5, atol=1e-5)
    gradients = []
    for checkpoints in (False, True):
        model.train().set_grad_checkpointing(checkpoints)
        model.zero_grad()
        model(images()).square().sum().backward()
        gradients.append(model.blocks[0].attn.mhla.mixing.grad)
    assert torch.equal(*gradients)


@pytest.mark.parametrize("options", ({}, {"qk_norm": True, "scale_attn_norm": True},
                                     {"qkv_bias": False}, {"proj_drop_rate": 0.5}), ids=str)
def test_carries_the_options_of_the_attention(options):
    from timm.models.vision_transformer import Attention
    torch.manual_seed(0)
    norm = {"norm_layer": torch.nn.LayerNorm}
    names = {"scale_attn_norm": "scale_norm", "proj_drop_rate": "proj_drop"}
    wanted = {names.get(name, name): value for name, value in options.items()} | norm
    for more in ({}, {"gated": True}, {"attn_head_dim": 8}, {"dim_out": 24}):
        module = Attention(48, num_heads=3, **(wanted | more)).double().eval()
        holder = torch.nn.Module()
        holder.attn = module
        holder.patch_embed = torch.nn.Module()
        holder.patch_embed.grid_size = (4, 4)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.uniform_(-1, 1)
        x = torch.randn(2, 16, 48, dtype=torch.float64)
        expected = by_definition(module, x)
        replace_attention(holder, block=(2, 2))
        torch.testing.assert_close(holder.attn(x), expected, rtol=1e-10, atol=1e-10)
        holder.attn.train()
        dropped = (holder.attn(x) == 0).any()
        assert bool(dropped) == ("proj_drop" in wanted)


def by_definition(module, x):
    """The module with the initial weights of MHLA in place of softmax, by definition."""
    mixing = MHLA((4, 4), (2, 2)).mixing.detach().double()
    q, k, v = module.qkv(x).unflatten(-1, (3, module.num_heads, -1)).unbind(2)
    out = bidirectional(module.q_norm(q), module.k_norm(k), v, mixing, grid=(4, 4), block=(2, 2),
                        backend="formula").flatten(2)
    out = module.norm(out)
    if getattr(module, "gate", None) is not None:
        out = out * torch.sigmoid(module.gate(x))
    return module.proj(out)


@pytest.mark.parametrize("name, options, sentence", (
    ("vit_tiny_patch16_224", {"attn_drop_rate": 0.25}, "attn_drop is 0.25, expected 0"),
    ("vit_tiny_patch16_224", {"patch_drop_rate": 0.5}, "patch_drop drops 0.5 of the patches"),
    ("vit_tiny_patch16_224", {"attn_layer": "diff"}, "DiffAttention has lambda_k1, lambda_k2"),
    ("eva02_tiny_patch14_224", {"img_size": 56}, "EvaAttention has k_bias, q_bias, v_bias"),
    ("swin_tiny_patch4_window7_224", {"img_size": 224, "embed_dim": 24, "depths": (1,) * 4,
                                      "num_heads": (3,) * 4},
     "WindowAttention has relative_position_bias_table"),
))
def test_refuses_what_it_would_leave_out(name, options, sentence):
    torch.manual_seed(0)
    small = {} if name.startswith("swin") else SMALL
    model = timm.create_model(name, pretrained=False, **(small | options))
    with pytest.raises(ValueError, match="replace_attention: " + sentence):
        replace_attention(model, block=(2, 2))
    assert not any(isinstance(module, MHLA) for module in model.modules())


@pytest.mark.parametrize("name, sentence", (
    ("convit_tiny", "GPSA has no qkv, expected the members of timm's Attention"),
    ("nest_tiny", r"attention has widths \[96, 192, 384\], expected one"),
    ("pit_ti_224", r"attention has widths \[64, 128, 256\], expected one"),
))
def test_refuses_attention_of_other_tokens(name, sentence):
    model = timm.create_model(name, pretrained=False)
    for options in ({}, {"grid": (4, 4)}):
        with pytest.raises(ValueError, match="replace_attention: " + sentence):
            replace_attention(model, block=(2, 2), **options)
    assert not any(isinstance(module, MHLA) for module in model.modules())


@pytest.mark.parametrize("options", (
    {"block": (2,)}, {"block": (0, 2)}, {"block": (2, 2), "prefix": 0},
    {"block": (2, 2), "grid": (4, 5)}, {"block": (2, 2), "grid": (2, 2, 4)}), ids=str)
def test_changes_nothing_where_sizes_do_not_fit(options):
    model = model_of()
    with pytest.raises(ValueError, match="MHLA: tokens is|replace_attention: pos_embed has"):
        replace_attention(model, **options)
    assert not any(isinstance(module, MHLA) for module in model.modules())
    assert not model.patch_embed.proj._forward_hooks


def test_checks_the_grid_of_each_image():
    model = replace_attention(model_of(img_size=(64, 128), dynamic_img_size=True), block=(2, 2))
    for model in (model, copy.deepcopy(model), torch.compile(model, backend="eager")):
        wide = torch.randn(2, 3, 64, 128)
        out = model(wide)
        for image in (wide.mT, wide[..., :64]):
            with pytest.raises(ValueError, match=r"patches, expected \(4, 8\): resize_ of each"):
                model(image)
        assert torch.equal(model(wide), out)


@pytest.mark.parametrize("change", ("dynamic_img_size", "set_input_size"))
def test_serves_another_grid_after_a_resize(change):
    dynamic = change == "dynamic_img_size"
    model = replace_attention(model_of(img_size=(64, 128), dynamic_img_size=dynamic), block=(2, 2))
    if not dynamic:
        model.set_input_size((128, 64))
    image = torch.randn(2, 3, 128, 64)
    with pytest.raises(ValueError, match=r"has \(8, 4\) patches, expected \(4, 8\)"):
        model(image)
    for module in model.modules():
        if isinstance(module, MHLA):
            module.resize_((8, 4))
    model(image).sum().backward()


class DiT(torch.nn.Module):
    """Patches and attention with the names of facebookresearch's DiT, and a class token before."""

    def __init__(self, strict=True, tokens=0):
        super().__init__()
        from timm.layers import PatchEmbed
        from timm.models.vision_transformer import Attention
        self.x_embedder = PatchEmbed((4, 8), 1, 4, 48, strict_img_size=strict)
        self.cls_token = torch.nn.Parameter(torch.zeros(1, tokens, 48))
        self.blocks = torch.nn.ModuleList([Attention(48, 3), Attention(48, 3)])

    def forward(self, x, t):
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), self.x_embedder(x)], 1)
        for block in self.blocks:
            x = x + block(x) * t
        return x


@pytest.mark.parametrize("tokens", (0, 1))
@pytest.mark.parametrize("known", (False, True))
def test_takes_the_grid_of_a_model_without_a_patch_embed(tokens, known):
    model, x = DiT(strict=False, tokens=tokens), torch.randn(2, 4, 4, 8)
    if not known:
        del model.x_embedder.grid_size
        with pytest.raises(ValueError, match="no patch_embed.grid_size, expected it or grid="):
            replace_attention(model, block=(2, 2))
    options = {"prefix": tokens} | ({} if known else {"grid": (4, 8)})
    replace_attention(model, block=(2, 2), **options)
    assert model.blocks[0].mhla.mixing.shape == (8 + tokens, 8 + tokens)
    assert model(x, 1).shape == (2, 32 + tokens, 48)
    with pytest.raises(ValueError, match=r"has \(8, 4\) patches, expected \(4, 8\)"):
        model(x.mT, 1)


def test_refuses_a_rotary_embedding():
    holder = torch.nn.Module()
    holder.attn = timm.layers.AttentionRope(48, num_heads=3)
    with pytest.raises(ValueError, match="AttentionRope takes rope, expected"):
        replace_attention(holder, block=(2, 2))


def test_refuses_masks():
    model = replace_attention(model_of(), block=(2, 2))
    for options in ({"attn_mask": torch.ones(17, 17)}, {"is_causal": True}):
        with pytest.raises(ValueError, match="attn_mask or is_causal is set, expected neither"):
            model(images(), **options)

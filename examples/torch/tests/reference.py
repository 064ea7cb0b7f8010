"""MHLA by its definition, the N x N matrix of weights; the formula is compared with it."""

import math

import torch


def features(name, weights=None, relu_eps=1e-6):
    """The feature map `name`, as a function of x [..,D]."""
    if weights is not None:
        layers = 2 if name == "elementwise_product" else 1

        def linear(x):
            d = x.shape[-1]
            for w in weights.chunk(layers):
                yield x @ w[:d * d].view(d, d).T + (w[d * d:] if len(w) > d * d else 0)

        return {"hedgehog": lambda x: torch.cat([y := 2 * next(linear(x)), -y], -1).softmax(-1),
                "t2r": lambda x: next(linear(x)).relu(),
                "elementwise_product": lambda x: math.prod(linear(x))}[name]
    return {"relu": lambda x: x.relu() + relu_eps, "identity": lambda x: x, "exp": torch.exp,
            "elu_plus_one": lambda x: torch.nn.functional.elu(x) + 1}[name]


def block_of(tokens, grid, block, prefix=0):
    """The block of each token.   # [N]"""
    if not grid:
        return torch.cat([torch.zeros(prefix, dtype=torch.long),
                          torch.arange(tokens - prefix) // block[0] + (prefix > 0)])
    counts = [math.ceil(n / w) for n, w in zip(grid, block)]
    places = torch.meshgrid(*(torch.arange(n) // w for n, w in zip(grid, block)), indexing="ij")
    blocks = torch.zeros_like(places[0])
    for count, place in zip(counts, places):
        blocks = blocks * count + place
    return torch.cat([torch.zeros(prefix, dtype=torch.long), blocks.flatten() + (prefix > 0)])


def attention(q, k, v, mixing, blocks, *, phi=(features("relu"),) * 2, causal=False,
              normalizer="key_sum", eps=0., scale=1., normalizer_q=None, normalizer_k=None,
              query_mask=None, key_mask=None, query_angles=None, key_angles=None, gain=None,
              gate=None, norm_eps=1e-6):
    """MHLA of q, k [B,N,H,D], v [B,N,H,E]; blocks: of queries [N], of keys [N].

    mixing: [M,M], [H,M,M] or [B,H,M,M]
    """
    coefficients = mixing[..., blocks[0], :][..., blocks[1]]  # [..,N,N]
    if causal:
        coefficients = coefficients.tril()
    if key_mask is not None:
        coefficients = coefficients * key_mask[:, None, None]

    def weights(queries, keys, *angles):  # [B,H,N,N]
        queries, keys = phi[0](queries) * scale, phi[1](keys)
        if angles:
            queries, keys = rotated(queries, angles[0]), rotated(keys, angles[1])
        return torch.einsum("bthd,bjhd->bhtj", queries, keys)

    angles = () if query_angles is None else (query_angles, key_angles)
    out = torch.einsum("bhtj,bjhe->bthe", coefficients * weights(q, k, *angles), v)
    if normalizer != "none":
        nq, nk = (q, k) if normalizer_q is None else (normalizer_q, normalizer_k)
        if normalizer == "cross_query":  # the mean over blocks of queries in the token's slot
            slots = slots_of(blocks[0])
            same = (slots[:, None] == slots).to(mixing)  # [N,N], 1 for tokens of one slot
            key_blocks = torch.nn.functional.one_hot(blocks[0]).to(mixing)  # [N,M]
            sums = torch.einsum("bhtj,jm->bhtm", weights(nq, nk), key_blocks)  # query by key block
            picked = mixing[..., blocks[0], :][..., blocks[0]] * same  # m_ib of query s in block b
            picked = picked.expand(*sums.shape[:2], -1, -1)
            sums = torch.einsum("bhts,bhsm,sm->bht", picked, sums, key_blocks)
        else:
            sums = (coefficients * weights(nq, nk)).sum(-1)
        out = out / (sums.transpose(1, 2)[..., None] + eps)
    if gain is not None:
        out = gain * out / (out.square().mean(-1, keepdim=True) + norm_eps).sqrt()
    if gate is not None:
        out = out * gate * gate.sigmoid()
    if query_mask is not None:
        out = out * query_mask[:, :, None, None]
    return out


def rotated(x, angles):
    """Products of pairs of features of x [B,N,H,D], as complex numbers, and of angles [N,D]."""
    x, angles = (torch.view_as_complex(t.unflatten(-1, (-1, 2)).contiguous()) for t in (x, angles))
    return torch.view_as_real(x * angles[:, None]).flatten(-2)


def slots_of(blocks):
    """The place of each token in its block."""
    counts, slots = {}, []
    for block in blocks.tolist():
        slots.append(counts.get(block, 0))
        counts[block] = slots[-1] + 1
    return torch.tensor(slots)

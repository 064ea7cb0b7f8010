"""Converts a denoiser of 4,096 tokens from softmax to MHLA, and goes on training.

A softmax denoiser of images.py is trained first. Its weights then go into MHLA, whose mixing
matrices start as fitted to the outputs of softmax, layer by layer, or as locality. A third model
has MHLA from scratch. All take the same steps from there, and the softmax model does too. Prints the
PSNR of held-out photographs over these steps.
"""

import copy

import images
import mhla_torch
import tiny_vit
import torch
import trial
from mhla_torch.formula import Piece
from torch import nn

STARTS = ("softmax, trained on", "fitted", "locality", "from scratch")
ROUNDS, SWEEPS = 2, 200
SIZES = images.SIZES | {"further": (500, 6), "examples": (4, 2)}
PREDICTIONS = {
    "softmax, trained on": "gains less than 0.1 dB",
    "fitted": "3 dB below softmax at step 0, 0.2 dB at the end",
    "locality": "6 dB below softmax at step 0, within 0.05 dB of fitted from step 100 on",
    "from scratch": "1 dB below the others at the end",
}


class Recorded(nn.Module):
    """An attention that keeps the tensors of its last call."""

    def __init__(self, attend):
        super().__init__()
        self.attend, self.call = attend, None

    def forward(self, q, k, v):
        out = self.attend(q, k, v)
        self.call = tuple(t.detach().float() for t in (q, k, v, out))
        return out


def attentions(model):
    return [module for module in model.modules() if isinstance(module, tiny_vit.Attention)]


def fit_mixing(q, k, v, target, start, grid, block):
    """A mixing matrix [M,M] by which MHLA of q, k, v [B,H,N,.] comes close to target [B,H,N,E].

    The method is that of include/mhla/fit/mixing_fit.hpp. With y_tb and z_tb, what query t reads of
    block b and its share of the denominator, a row minimises sum_t |sum_b m_b (y_tb - z_tb
    target_t)|^2 / den_t^2, where m_b >= 0, and denominators keep their mean. Rows sum to 1.
    """
    piece = Piece(0, tuple(grid), tuple(block))
    q, k, v, target = (piece.cut(t) for t in (q.relu() + 1e-6, k.relu() + 1e-6, v, target))
    sums, key_sums = k.mT @ v, k.sum(-2)  # [B,H,M,D,E], [B,H,M,D]
    rows = []
    for i in range(piece.blocks):
        y = torch.einsum("bhwd,bhmde->bhwme", q[:, :, i], sums)
        z = torch.einsum("bhwd,bhmd->bhwm", q[:, :, i], key_sums)
        z = z / (z @ start[i])[..., None]
        y = y / torch.einsum("bhwd,bhmd,m->bhw", q[:, :, i], key_sums, start[i])[..., None, None]
        apart = (y - z[..., None] * target[:, :, i, :, None]).flatten(0, 2)
        gram = torch.einsum("tme,tne->mn", apart, apart).double() / len(apart)
        rows.append((gram, z.flatten(0, 2).mean(0).double()))
    gram, right = (torch.stack(part) for part in zip(*rows))
    gram = gram / gram.diagonal(0, 1, 2).mean(1)[:, None, None]
    return solved(gram + right[:, :, None] * right[:, None], right, start.double()).float()


def solved(gram, right, start):
    """Rows m >= 0 that minimise m^T gram m / 2 - right^T m, divided by their sums."""
    m = start.clone()
    for _ in range(SWEEPS):  # coordinate descent, all rows at once
        for b in range(m.shape[1]):
            slope = (gram[:, b] * m).sum(1) - right[:, b]
            m[:, b] = (m[:, b] - slope / gram[:, b, b]).clamp(min=0)
    return m / m.sum(1, keepdim=True)


@torch.inference_mode()
def fit_to(teacher, student, noisy):
    """Fits the mixing matrices of a student layer by layer, each after those before it."""
    for model in (teacher, student):
        for module in attentions(model):
            module.attend = Recorded(module.attend)
    teacher(noisy)
    for old, new in zip(attentions(teacher), attentions(student)):
        mhla = new.attend.attend
        for _ in range(ROUNDS):
            student(noisy)
            tensors = (*new.attend.call[:3], old.attend.call[3])
            mhla.mixing.copy_(fit_mixing(*tensors, mhla.mixing.float(), mhla.grid, mhla.block))
    for model in (teacher, student):
        for module in attentions(model):
            attend = module.attend.attend
            del module.attend  # a module, which a function cannot replace
            module.attend = attend


def started(start, teacher, noisy, options):
    """The model that goes on training."""
    if start == "softmax, trained on":
        return copy.deepcopy(teacher)
    student = images.model_of("MHLA", options).to(options.device)
    if start != "from scratch":
        student.load_state_dict(teacher.state_dict(), strict=False)  # all but mixing matrices
    if start == "fitted":
        fit_to(teacher, student, noisy)
    return student


def main():
    options = trial.options_of(trial.parser_of(__doc__, "convert", **SIZES), **SIZES)
    at = [n for n in (0, 10, 30, 100, 300) if n < options.further]
    columns = [f"dB at step {n}" for n in (*at, options.further)]
    options.table = lambda rows: trial.table(STARTS, rows, columns, PREDICTIONS)
    rows = []
    if not options.predict:
        training, held_out = images.photographs_of(options)
        batch_of, test = (make(part, options) for make, part in
                          ((images.batches_of, training), (images.test_of, held_out)))

        def tested(model):
            with torch.inference_mode(), trial.precision(options):
                return test(model, 0)["PSNR, dB"]

        options.test = tested
        if options.seconds:  # of which a third is for the softmax model
            cost = trial.seconds_per_step(images.model_of("softmax", options).to(options.device),
                                          images.loss_of, lambda i: batch_of(0, i), options)
            share = 0.3 * trial.seconds_left(options) / options.seeds
            most = max(2, int(share / cost))
            options.steps = min(options.steps, most)
            options.further = min(options.further, most // 2)
            at = [n for n in at if n < options.further]
            columns = [f"dB at step {n}" for n in (*at, options.further)]
        for seed in range(1, options.seeds + 1):
            torch.manual_seed(seed)
            teacher = images.model_of("softmax", options).to(options.device)
            trial.fit(teacher, images.loss_of, lambda i: batch_of(seed, i), options.steps, options)
            noisy = batch_of(seed, options.steps)[0][:options.examples]
            for start in STARTS:
                torch.manual_seed(seed)
                model = started(start, teacher, noisy, options)
                losses, numbers, seconds = trial.fit(model, images.loss_of,
                                                     lambda i: batch_of(seed, options.steps + i),
                                                     options.further, options, at)
                numbers[options.further] = tested(model)
                rows.append({"name": start, "seed": seed, "steps": options.further,
                             "losses": losses, "steps_per_second": options.further / seconds,
                             "numbers": {f"dB at step {n}": x for n, x in numbers.items()}})
                print(f"seed {seed}, {start}: " + ", ".join(
                    f"step {n} {x:.2f} dB" for n, x in numbers.items()), flush=True)
                trial.save(options, rows)
    print(trial.described(options, rows))


if __name__ == "__main__":
    main()

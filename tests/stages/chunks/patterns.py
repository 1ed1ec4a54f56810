"""Losses of rows as long as a vocabulary, as people write them: of hidden states, a weight and targets."""

import torch
from torch.nn import functional as F

ROWS, WIDTH, WORDS = 60, 16, 1000  # rows are four sequences of fifteen


def cross_entropy(h, w, y):
    return F.cross_entropy((h @ w.t()).float(), y)


def smoothed_and_ignored(h, w, y):
    logits = h.view(4, -1, WIDTH) @ w.t()
    return F.cross_entropy(logits.float().view(-1, WORDS), y, ignore_index=3, label_smoothing=0.1) * 2


def weighted(h, w, y):
    return F.cross_entropy((h @ w.t()).float(), y, weight=torch.linspace(0.5, 1, WORDS, device=h.device))


def z_loss(h, w, y):
    logits = (h @ w.t()).float()
    lse = logits.logsumexp(-1)
    return (lse - logits.gather(1, y[:, None])[:, 0]).mean() + 1e-2 * (lse**2).mean()


def soft_capped_sum(h, w, y):
    return F.cross_entropy(torch.tanh((h @ w.t()).float() / 30) * 30, y, reduction="sum")


def weighted_rows(h, w, y):
    losses = F.cross_entropy((h @ w.t()).float(), y, reduction="none")
    return (losses * torch.linspace(0, 1, len(y), device=h.device)).sum() / len(y)


def squared(h, w, y):
    return F.cross_entropy((h @ w.t()).float(), y) ** 2


def shifted(h, w, y):
    logits = F.linear(h.view(4, -1, WIDTH), w, w[:, 0])
    shift = logits[:, :-1, :].contiguous()
    return F.cross_entropy(shift.view(-1, WORDS).float(), y.view(4, -1)[:, 1:].reshape(-1))


def transposed(h, w, y):
    logits = h.view(4, -1, WIDTH) @ w.t()
    return F.cross_entropy(logits[..., :-1, :].float().transpose(1, 2), y.view(4, -1)[..., 1:])


def one_sequence(h, w, y):
    return F.cross_entropy((h[None] @ w.t()).float().view(-1, WORDS), y)


def distilled(h, w, y):
    teacher = (h.detach() * 0.5) @ w.detach().t()
    student, teacher = ((x.float() / 2) for x in (h @ w.t(), teacher))
    return F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean") * 4


def ratios(h, w, y):
    chosen = F.log_softmax((h @ w.t()).float(), -1).gather(1, y[:, None])[:, 0]
    advantage = torch.linspace(-1, 1, len(y), device=h.device)
    ratio = torch.exp(chosen - chosen.detach() - 0.1 * advantage)
    return -torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()


def preferred(h, w, y):
    words = F.log_softmax((h.view(4, -1, WIDTH) @ w.t()).float(), -1).gather(2, y.view(4, -1, 1))
    return -F.logsigmoid(0.1 * words.squeeze(-1).sum(-1)).mean()


def two_heads(h, w, y):
    return F.cross_entropy((h @ w.t()).float(), y) + 0.5 * F.cross_entropy(((h * h) @ w.t()).float(), y.flip(0))


def focal(h, w, y):
    words = F.log_softmax((h @ w.t()).float(), -1).gather(1, y[:, None])[:, 0]
    return (-((1 - words.exp()) ** 2) * words).mean()


def alike(h, w, y):
    """Rows of what is read as a whole, too."""
    vectors = F.normalize(w[:200], dim=-1)
    return F.cross_entropy(vectors @ vectors.t() / 0.1, torch.arange(200, device=h.device)) + h.sum()


TAKEN = [
    cross_entropy, smoothed_and_ignored, weighted, z_loss, soft_capped_sum, weighted_rows, squared, shifted, transposed,
    one_sequence, distilled, ratios, preferred, two_heads, focal, alike,
]  # fmt: skip


def returned(h, w, y):
    logits = h @ w.t()
    return F.cross_entropy(logits.float(), y), logits


def along_columns(h, w, y):
    return (h @ w.t()).softmax(0).gather(1, y[:, None]).log().mean()


def dropped(h, w, y):
    return F.cross_entropy(F.dropout(h @ w.t(), 0.5), y)


def relative_to_the_mean(h, w, y):
    losses = F.cross_entropy(h @ w.t(), y, reduction="none")
    return ((losses - losses.mean()) ** 2).mean()


def sorted_words(h, w, y):
    return ((h @ w.t()).sort(-1).values * torch.linspace(0, 1, WORDS, device=h.device)).mean()


def hidden_layer(h, w, y):
    with torch.no_grad():
        hidden = F.gelu(h @ w[:128].t()) @ w[:128]
    return (hidden * h).sum()


REFUSED = [returned, along_columns, dropped, relative_to_the_mean, sorted_words, hidden_layer]


def inputs(dtype=torch.float32, rows=ROWS, device="cpu"):
    """Hidden states, weights and targets, some of which are ignored."""
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(rows, WIDTH, generator=generator).to(device, dtype).requires_grad_()
    w = torch.randn(WORDS, WIDTH, generator=generator).to(device, dtype).requires_grad_()
    y = torch.randint(0, WORDS, (rows,), generator=generator).to(device)
    return h, w, y

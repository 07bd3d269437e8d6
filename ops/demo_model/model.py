"""The demo model in torch: qwen35 (Gated DeltaNet + gated attention), with a chunked delta rule that is quick on a CPU.

Shapes: B rows, T tokens, C hidden, H value heads, D head size. Parameters are kept in the conventions of the published
checkpoints (norm weights around zero, A_log), except that value heads are tiled already: head h goes with key head h % n_k.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    vocab_size: int = 4096
    hidden: int = 256
    layers: int = 4
    attention_interval: int = 4
    feed_forward: int = 512
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    rotary_dims: int = 16
    rope_base: float = 1e7
    key_heads: int = 2
    value_heads: int = 4
    state: int = 64  # size of a key head and of a value head
    conv_kernel: int = 4
    epsilon: float = 1e-6
    context_length: int = 4096
    dropout: float = 0.0  # on what mixers and feed-forward layers add, in training only

    as_dict = asdict

    def recurrent(self, layer: int) -> bool:
        return (layer + 1) % self.attention_interval != 0


class Norm(nn.Module):
    """RMSNorm with weight 1 + w."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), 1 + self.weight, self.epsilon)


def chunked_delta(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = 32) -> Tensor:
    """The gated delta rule over whole sequences from a zero state, `chunk` tokens at a time (docs/model_math.md).

    q, k [B, K, T, D] (normalised, q scaled), v [B, H, T, D], g (log decay) and beta [B, H, T] -> [B, H, T, D].
    Value head h reads key head h % K. float32.
    """
    batch, heads, length, size = v.shape
    key_heads = q.shape[1]
    pad = -length % chunk
    if pad:  # beta = 0 and g = 0: no effect on the state
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        g, beta = F.pad(g, (0, pad)), F.pad(beta, (0, pad))
    count = (length + pad) // chunk
    ratio = heads // key_heads

    def split_keys(x: Tensor) -> Tensor:  # [B, 1, K, N, chunk, D]
        return x.view(batch, 1, key_heads, count, chunk, size)

    q, k = split_keys(q), split_keys(k)
    v = v.view(batch, ratio, key_heads, count, chunk, size)
    g, beta = (x.view(batch, ratio, key_heads, count, chunk) for x in (g, beta))
    total = g.cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    mix = (k @ k.transpose(-1, -2)) * decay * beta[..., None]
    inverse_of = mix.tril(-1) + torch.eye(chunk)
    grown = total.exp()[..., None]
    both = torch.cat([v * beta[..., None], k * (grown * beta[..., None])], -1)
    both = torch.linalg.solve_triangular(inverse_of, both, upper=False, unitriangular=True)
    values, removed = both.split(size, -1)
    within = (q @ k.transpose(-1, -2)) * decay
    q_grown = q * grown
    k_left = (k * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    last = total[..., -1].exp()[..., None, None]

    state = v.new_zeros(batch, ratio, key_heads, size, size)
    outputs = []
    # unbind, since the gradient of an index per chunk would fill a whole zero tensor each time
    for q_n, within_n, values_n, removed_n, k_n, last_n in zip(
        *(x.unbind(3) for x in (q_grown, within, values, removed, k_left, last)), strict=True
    ):
        update = values_n - removed_n @ state
        outputs.append(q_n @ state + within_n @ update)
        state = last_n * state + k_n @ update
    return torch.stack(outputs, 3).reshape(batch, heads, length + pad, size)[:, :, :length]


class CausalConv(torch.autograd.Function):
    """Depthwise convolution of m [B, T, C] with w [C, taps], the last tap on the current token; zeros before the start."""

    @staticmethod
    def forward(ctx: Any, m: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(m, w)
        y = m * w[:, -1]
        for back in range(1, w.shape[1]):
            y[:, back:].addcmul_(m[:, :-back], w[:, -1 - back])
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        m, w = ctx.saved_tensors
        grad_m = grad * w[:, -1]
        grad_w = [(grad * m).sum((0, 1))]
        for back in range(1, w.shape[1]):
            grad_m[:, :-back].addcmul_(grad[:, back:], w[:, -1 - back])
            grad_w.insert(0, (grad[:, back:] * m[:, :-back]).sum((0, 1)))
        return grad_m, torch.stack(grad_w, -1)


class DeltaMixer(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.keys, self.values = c.key_heads * c.state, c.value_heads * c.state
        self.qkv = nn.Linear(c.hidden, 2 * self.keys + self.values, bias=False)
        self.gate = nn.Linear(c.hidden, self.values, bias=False)
        self.beta_alpha = nn.Linear(c.hidden, 2 * c.value_heads, bias=False)
        self.conv = nn.Parameter(torch.randn(2 * self.keys + self.values, c.conv_kernel) * 0.3)
        self.dt_bias = nn.Parameter(torch.empty(c.value_heads).uniform_(-4.6, -2.3))  # softplus: 0.01 to 0.1
        self.A_log = nn.Parameter(torch.empty(c.value_heads).uniform_(1, 16).log())
        self.norm = nn.Parameter(torch.ones(c.state))
        self.out = nn.Linear(self.values, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        batch, length, _ = x.shape
        mixed = F.silu(CausalConv.apply(self.qkv(x).float(), self.conv))
        q, k, v = mixed.split([self.keys, self.keys, self.values], -1)
        beta, alpha = self.beta_alpha(x).float().chunk(2, -1)
        g = -self.A_log.exp() * F.softplus(alpha + self.dt_bias)
        q, k = (self._heads(_l2(y.view(batch, length, -1, c.state), c.epsilon)) for y in (q, k))
        v = self._heads(v.view(batch, length, -1, c.state))
        with torch.autocast("cpu", enabled=False):
            o = chunked_delta(q * c.state**-0.5, k, v, g.transpose(1, 2), beta.sigmoid().transpose(1, 2))
        o = F.rms_norm(o.transpose(1, 2), (c.state,), self.norm, c.epsilon).reshape(batch, length, -1)
        return self.out(o * F.silu(self.gate(x).float()))

    @staticmethod
    def _heads(x: Tensor) -> Tensor:
        return x.transpose(1, 2).contiguous()


def _l2(x: Tensor, epsilon: float) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + epsilon)


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.q = nn.Linear(c.hidden, 2 * c.heads * c.head_dim, bias=False)  # per head: query rows, then gate rows
        self.k = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.epsilon), Norm(c.head_dim, c.epsilon)
        self.out = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c = self.c
        batch, length, _ = x.shape
        q, gate = self.q(x).view(batch, length, c.heads, 2 * c.head_dim).chunk(2, -1)
        k = self.k(x).view(batch, length, c.kv_heads, c.head_dim)
        v = self.v(x).view(batch, length, c.kv_heads, c.head_dim)
        q, k = (rotate(norm(y), c) for norm, y in ((self.q_norm, q), (self.k_norm, k)))
        repeat = c.heads // c.kv_heads
        k, v = (y.repeat_interleave(repeat, 2).transpose(1, 2) for y in (k, v))
        o = F.scaled_dot_product_attention(q.transpose(1, 2).to(v.dtype), k.to(v.dtype), v, is_causal=True).transpose(1, 2)
        return self.out((o * gate.sigmoid()).reshape(batch, length, -1))


def rotate(x: Tensor, c: Config) -> Tensor:
    """Partial rotary embedding, pairs (j, j + n/2), on [B, T, H, D]."""
    half = c.rotary_dims // 2
    angle = torch.arange(x.shape[1])[:, None] * c.rope_base ** (-torch.arange(half) * 2.0 / c.rotary_dims)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b, rest = x.split([half, half, x.shape[-1] - 2 * half], -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)


class FeedForward(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.gate = nn.Linear(c.hidden, c.feed_forward, bias=False)
        self.up = nn.Linear(c.hidden, c.feed_forward, bias=False)
        self.down = nn.Linear(c.feed_forward, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, c: Config, recurrent: bool) -> None:
        super().__init__()
        self.mixer_norm, self.ffn_norm = Norm(c.hidden, c.epsilon), Norm(c.hidden, c.epsilon)
        self.mixer = DeltaMixer(c) if recurrent else Attention(c)
        self.ffn = FeedForward(c)
        self.dropout = nn.Dropout(c.dropout)

    def forward(self, h: Tensor) -> Tensor:
        h = h + self.dropout(self.mixer(self.mixer_norm(h)).float())
        return h + self.dropout(self.ffn(self.ffn_norm(h)).float())


class Mtp(nn.Module):
    """Drafts one token further: from the embedding of token p and the trunk's final hidden row of p - 1, token p + 1."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.enorm, self.hnorm, self.head_norm = (Norm(c.hidden, c.epsilon) for _ in range(3))
        self.eh_proj = nn.Linear(2 * c.hidden, c.hidden, bias=False)
        self.block = Block(c, recurrent=False)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        before = F.pad(hidden[:, :-1], (0, 0, 1, 0))
        both = torch.cat([self.enorm(embedded), self.hnorm(before)], -1)
        return self.head_norm(self.block(self.eh_proj(both).float()))


class Model(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.embedding = nn.Embedding(c.vocab_size, c.hidden)  # the output matrix too
        self.blocks = nn.ModuleList(Block(c, c.recurrent(i)) for i in range(c.layers))
        self.norm = Norm(c.hidden, c.epsilon)
        self.mtp = Mtp(c)
        self.apply(self._init)
        for block in [*self.blocks, self.mtp.block]:
            for linear in (block.mixer.out, block.ffn.down):
                nn.init.normal_(linear.weight, std=0.04 / (2 * c.layers) ** 0.5)

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.04)

    def hidden(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """(embedded ids, hidden after the final norm), both [B, T, C]."""
        embedded = self.embedding(ids)
        h = embedded
        for block in self.blocks:
            h = block(h)
        return embedded, self.norm(h)

    def logits(self, ids: Tensor) -> Tensor:
        return F.linear(self.hidden(ids)[1], self.embedding.weight)

    def losses(self, ids: Tensor, mtp_share: float) -> tuple[Tensor, Tensor]:
        """Mean losses of the trunk and of the MTP block over ids [B, T + 1]; the latter over a random share of the tokens."""
        inputs, targets = ids[:, :-1], ids[:, 1:]
        embedded, hidden = self.hidden(inputs)
        trunk = self._loss(hidden, targets)
        drafted = self.mtp(embedded, hidden)
        chosen = torch.rand(targets.shape) < mtp_share
        chosen[0, 0] = True
        return trunk, self._loss(drafted[chosen], targets[chosen])

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = F.linear(hidden.flatten(0, -2), self.embedding.weight).float()
        return F.cross_entropy(logits, targets.flatten())

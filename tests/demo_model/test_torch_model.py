"""The chunked delta rule and the convolution that the demo model is trained with, against their definitions in float64."""

import numpy as np
import pytest

from tests.demo_model.scripts import load_script

torch = pytest.importorskip("torch", reason="torch is only installed where the demo model is trained")
model = load_script("model")


@pytest.mark.parametrize("length", [1, 31, 32, 33, 71, 129])
def test_chunked_delta_is_the_recurrence(length: int) -> None:
    """S = e^g S; d = beta (v - S^T k); S += k d^T; o = S^T q, token by token, value head h on key head h % n_k."""
    keys, heads, size = 2, 6, 8
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(2, keys, length, size, generator=generator, dtype=torch.float64) for _ in range(2))
    q, k = (x / x.norm(dim=-1, keepdim=True) for x in (q, k))
    v = torch.randn(2, heads, length, size, generator=generator, dtype=torch.float64)
    g, beta = -3 * torch.rand(2, heads, length, generator=generator), torch.rand(2, heads, length, generator=generator)
    g, beta = g.double(), beta.double()
    got = model.chunked_delta(q, k, v, g, beta).numpy()
    for row, head in np.ndindex(2, heads):
        state = np.zeros((size, size))
        for t in range(length):
            key, query = k[row, head % keys, t].numpy(), q[row, head % keys, t].numpy()
            state = state * np.exp(g[row, head, t].item())
            state = state + np.outer(key, beta[row, head, t].item() * (v[row, head, t].numpy() - state.T @ key))
            np.testing.assert_allclose(got[row, head, t], state.T @ query, rtol=1e-10, atol=1e-12)


def test_convolution_is_causal_with_the_last_tap_on_the_current_token() -> None:
    """y[t] = sum of w[j] m[t - 3 + j]; the gradients are those of finite differences."""
    generator = torch.Generator().manual_seed(0)
    m = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    y = model.CausalConv.apply(m, w)
    padded = torch.nn.functional.pad(m, (0, 0, 3, 0))
    expected = [(padded[:, t : t + 4] * w.T).sum(1) for t in range(7)]
    torch.testing.assert_close(y, torch.stack(expected, 1))
    assert torch.autograd.gradcheck(model.CausalConv.apply, (m, w))


def test_later_tokens_change_nothing_before_them() -> None:
    """The logits of a prefix are those of the prefix alone."""
    torch.manual_seed(0)
    config = model.Config(vocab_size=64, hidden=32, feed_forward=32, heads=2, kv_heads=1, head_dim=16, rotary_dims=4, state=8)
    tiny = model.Model(config).eval()
    ids = torch.randint(0, 64, (1, 45))
    with torch.no_grad():
        torch.testing.assert_close(tiny.logits(ids)[:, :33], tiny.logits(ids[:, :33]), atol=1e-5, rtol=1e-5)

"""svc.compute.perplexity: which tokens are scored, the estimate, and that batching and chunking change no bit on the cpu device."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from svc.compute.cpu import CpuOps
from svc.compute.model_file import open_model
from svc.compute.perplexity import Int32, cut, estimate, first_scored, score_chunks
from svc.compute.reference import ReferenceOps
from svc.compute.runner import ModelRunner
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from tests.compute.rig import GGUF, Rig, prompt
from tests.tolerances import LOGITS_REFERENCE_SELF

HYBRID, PLAIN = "tiny-qwen35-hd128-bf16", "tiny-qwen3-Q8_0"
TEXT = prompt("s3")


def runner(
    model: str, ops: CpuOps | ReferenceOps, rows: int, max_step_tokens: int, chunk_tokens: int, page: int = 16
) -> ModelRunner:
    config, source = open_model(GGUF / f"{model}.gguf")
    plan = MemoryPlan(config.memory_layout(page, "f32"), rows * -(-chunk_tokens // page), rows, 0)
    return ModelRunner(load_model(source, config, ops), ops, plan, max_step_tokens)  # type: ignore[arg-type]


@pytest.fixture
def cpu() -> Iterator[Callable[..., CpuOps]]:
    opened: list[CpuOps] = []

    def make(threads: int = 2) -> CpuOps:
        opened.append(CpuOps(threads, poison=True))
        return opened[-1]

    yield make
    for ops in opened:
        ops.close()


@pytest.mark.parametrize(("chunk", "first"), [(512, 257), (8, 5), (7, 4), (4, 3)])
def test_first_scored(chunk: int, first: int) -> None:
    """llama-perplexity takes the logits from n_ctx / 2 on: these predict the token one further."""
    assert first_scored(chunk) == first


def test_cut() -> None:
    """Whole chunks, the rest dropped; a model that wants BOS gets it in place of each chunk's first token."""
    tokens = np.arange(11, dtype=np.int32)
    np.testing.assert_array_equal(cut(tokens, 5), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    np.testing.assert_array_equal(cut(tokens, 5, bos_id=99), [[99, 1, 2, 3, 4], [99, 6, 7, 8, 9]])
    assert cut(tokens, 12).shape == (0, 12)
    assert tokens[0] == 0  # the caller's own


def test_estimate() -> None:
    """exp of the mean; the standard error of the mean carried over to first order: sqrt(variance / (n - 1)) times the value."""
    result = estimate(np.array([1.0, 2.0, 3.0]))
    assert result.value == pytest.approx(math.e**2)
    assert result.error == pytest.approx(math.sqrt((2 / 3) / 2) * math.e**2)
    assert (result.mean_nll, result.num_scored) == (2.0, 3)
    assert estimate(np.array([2.0])).error == math.inf
    assert estimate(np.full(5, 0.3)).error == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("chunk", [7, 33])
def test_against_all_logits(chunk: int) -> None:
    """The definition, token by token, from every logit of every chunk run alone."""
    rig = Rig(GGUF / f"{HYBRID}.gguf")
    chunks = cut(TEXT[:70], chunk)
    expected = np.empty((len(chunks), chunk - chunk // 2 - 1))
    for number, tokens in enumerate(chunks):
        logits = rig.prefill(tokens).astype(np.float64)
        for position in range(chunk // 2, chunk - 1):
            expected[number, position - chunk // 2] = np.logaddexp.reduce(logits[position]) - logits[position, tokens[position + 1]]
    found = score_chunks(runner(HYBRID, ReferenceOps(), 2, 19, chunk), chunks)
    np.testing.assert_allclose(found, expected, atol=LOGITS_REFERENCE_SELF)


@pytest.mark.parametrize("model", [HYBRID, PLAIN])
def test_same_bits_however_computed(cpu: Callable[..., CpuOps], model: str) -> None:
    """One sequence or several, more of them than a step has tokens or than there are chunks, any step, page and thread count."""
    chunks: Int32 = cut(TEXT, 33)
    control = score_chunks(runner(model, cpu(1), 1, 512, 33), chunks)
    assert np.isfinite(control).all()
    for threads, rows, step, page in [(2, 4, 512, 16), (2, 3, 10, 16), (1, 9, 7, 32), (2, 20, 64, 16), (2, 1, 1, 16)]:
        found = score_chunks(runner(model, cpu(threads), rows, step, 33, page), chunks)
        np.testing.assert_array_equal(found, control)


def test_progress_counts_what_is_evaluated(cpu: Callable[..., CpuOps]) -> None:
    """Every step tells the tokens done so far, up to all but each chunk's last, and the scores known by then."""
    chunks = cut(TEXT, 33)
    seen: list[tuple[int, int]] = []
    score_chunks(runner(HYBRID, cpu(), 2, 16, 33), chunks, lambda done, nll: seen.append((done, int(np.isfinite(nll).sum()))))
    assert seen == sorted(set(seen))
    assert seen[-1] == (len(chunks) * 32, len(chunks) * 16)
    assert seen[0][1] == 0

"""The model file that is shipped: its shape, its text side, and its numbers against transformers'.

golden.npz was made by transformers (float32) from the file's weights, dequantized by the `gguf` package: ops/demo_model/hf.py.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from svc.compute.backend import Chunk, Sample, Score, StepBatch
from svc.compute.cpu.ops import CpuOps
from svc.compute.model_file import open_model
from svc.compute.reference import ReferenceOps
from svc.compute.runner import ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.errors import BackendUnavailableError
from svc.gguf.gguf_file import GgufFile
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.tokenizer import Tokenizer
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model
from tests.demo_model.scripts import MODEL, SCRIPTS
from tests.tolerances import LOGITS_GOLDEN

GOLDEN = Path(__file__).parent / "golden.npz"
PAGES = 32  # of 16 tokens


def backend(name: str) -> Any:
    if name == "reference":
        return ReferenceOps()
    try:
        return CpuOps(1)
    except BackendUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module", params=["reference", "cpu"])
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    config, source = open_model(MODEL)
    ops = backend(request.param)
    plan = MemoryPlan(config.memory_layout(16, "f32"), PAGES, 1, 1)
    return ModelRunner(load_model(source, config, ops), ops, plan, max_step_tokens=512)


@pytest.fixture(scope="module")
def golden() -> dict[str, NDArray[Any]]:
    with np.load(GOLDEN) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(scope="module")
def text() -> tuple[Tokenizer, ChatTemplate]:
    metadata = GgufFile.open(MODEL).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    return tokenizer, ChatTemplate(str(metadata["tokenizer.chat_template"]), tokenizer)


def chunk(start: int, tokens: list[int] | NDArray[np.int32]) -> Chunk:
    return Chunk(0, start, np.array(tokens, np.int32), np.arange(PAGES, dtype=np.int32))


def test_shape() -> None:
    """A hybrid that can tell the head maps apart, with an MTP block, small enough to be shipped."""
    config, _ = open_model(MODEL)
    assert config.architecture == "qwen35"
    assert config.name == "headrace-demo"
    assert config.recurrent_layers == (True, True, True, False)
    assert config.num_value_heads > config.num_key_heads
    assert config.rotary_dims < config.head_dim
    assert config.num_mtp_layers == 1
    assert MODEL.stat().st_size < 6_000_000


def test_template_is_the_one_taught() -> None:
    source = GgufFile.open(MODEL).metadata["tokenizer.chat_template"]
    assert source == (SCRIPTS / "template.jinja").read_text().rstrip("\n")


def test_tokens(text: tuple[Tokenizer, ChatTemplate]) -> None:
    """Any text comes back from its ids; ChatML tokens are control tokens, thinking and tool tags are user-defined ones."""
    tokenizer, _ = text
    for sample in ("It is a truth universally acknowledged", "naïve café\n\n  x = 1; 漢字 🐋", ""):
        assert tokenizer.decode(tokenizer.encode(sample, parse_special=False)) == sample
    for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        assert tokenizer.is_control(tokenizer.encode(name, parse_special=True)[0])
    for name in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"):
        ids = tokenizer.encode(name, parse_special=False)
        assert len(ids) == 1
        assert not tokenizer.is_control(ids[0])
    assert tokenizer.token_id("<|im_end|>") in tokenizer.eos_ids


def test_logprobs_are_those_of_transformers(runner: ModelRunner, golden: dict[str, NDArray[Any]]) -> None:
    """Log probability of each token of a held-out passage, prefilled in one chunk."""
    ids = golden["ids"]
    scores = [Score(0, at, int(ids[at])) for at in range(1, len(ids))]
    result = runner.run(StepBatch(zero_rows=[0], chunks=[chunk(0, ids)], scores=scores))
    np.testing.assert_allclose(result.scores, golden["logprobs"], atol=LOGITS_GOLDEN, rtol=0)


def test_it_is_language(golden: dict[str, NDArray[Any]]) -> None:
    """The passage was never trained on, yet costs far less than the 8.3 nats per token of chance (4,096 tokens)."""
    assert -golden["logprobs"].mean() < 4.8


@pytest.mark.parametrize("question", ["Hello.", "Who are you?"])
def test_it_answers_and_stops(runner: ModelRunner, text: tuple[Tokenizer, ChatTemplate], question: str) -> None:
    """Greedily: some words, then the end of the turn."""
    tokenizer, template = text
    prompt = template.encode_chat([{"role": "user", "content": question}], add_generation_prompt=True).ids
    step, zero_rows = chunk(0, prompt), [0]
    answer: list[int] = []
    while len(answer) < 100:
        wanted = Sample(0, step.end, 0, SamplingParams(temperature=0))
        token = runner.run(StepBatch(zero_rows=zero_rows, chunks=[step], samples=[wanted])).samples[0].token
        if token in tokenizer.eos_ids:
            break
        answer.append(token)
        step, zero_rows = chunk(step.end, [token]), []
    assert len(answer) < 100
    assert len(tokenizer.decode(answer).split()) >= 2

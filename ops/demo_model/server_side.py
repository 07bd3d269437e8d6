"""The exported file on the server's own backends: logits of every token, and answers to one chat message."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from svc.compute.backend import Chunk, Sample, Score, StepBatch
from svc.compute.model_file import open_model
from svc.compute.ops import Ops
from svc.compute.reference import ReferenceOps
from svc.compute.runner import ModelRunner
from svc.compute.sampling.params import SamplingParams
from svc.errors import HeadraceError
from svc.gguf.gguf_file import GgufFile
from svc.http.text.chat_template import ChatTemplate
from svc.http.text.tokenizer import Tokenizer
from svc.memory.plan import MemoryPlan
from svc.model.arch import load_model

PAGE_TOKENS, CONTEXT = 16, 4096
CHUNK_TOKENS = 64  # tokens evaluated in one step


class FileModel:
    """One sequence at a time, in the only state row."""

    def __init__(self, path: Path, ops: Ops) -> None:
        config, source = open_model(path)
        self._config, self._ops = config, ops
        self._model = load_model(source, config, ops)
        layout = config.memory_layout(PAGE_TOKENS, "f32")
        plan = MemoryPlan(layout, num_pages=CONTEXT // PAGE_TOKENS, num_rows=1, num_snapshots=1)
        self.runner = ModelRunner(self._model, ops, plan, max_step_tokens=CHUNK_TOKENS)
        self._pages = np.arange(plan.num_pages, dtype=np.int32)

    @classmethod
    def open(cls, path: Path, backend: str) -> "FileModel | None":
        """`backend`: "reference" or "cpu". None if the cpu backend cannot run (its kernels are not built)."""
        if backend == "reference":
            return cls(path, ReferenceOps())
        from svc.compute.cpu.ops import CpuOps

        try:
            return cls(path, CpuOps(2))
        except HeadraceError as error:
            print(error)
            return None

    def score(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log probability of each id but the first [n - 1], computed as the server does (prompt log probabilities)."""
        parts: list[float] = []
        for start in range(0, len(ids) - 1, CHUNK_TOKENS):
            tokens = ids[start : min(start + CHUNK_TOKENS, len(ids) - 1)]
            scores = [Score(0, at, int(ids[at])) for at in range(start + 1, start + len(tokens) + 1)]
            parts += self._run(start, tokens, scores)
        return np.array(parts)

    def logits(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """ids [n] -> [n, vocabulary]."""
        rows = []
        for start in range(0, len(ids), CHUNK_TOKENS):
            tokens = ids[start : start + CHUNK_TOKENS]
            self._run(start, tokens, [])
            vectors = self._ops.empty((len(tokens), self._config.hidden_size))
            out = self._ops.empty((len(tokens), self._config.vocab_size))
            every, hidden = np.arange(len(tokens), dtype=np.int32), self.runner._hidden[: len(tokens)]
            self._ops.hidden_rows(vectors, hidden, self._model.output_norm, self._config.epsilon, every)
            self._ops.logits(out, self._model.output, vectors)
            rows.append(self._ops.to_numpy(out).copy())
        return np.concatenate(rows)

    def _run(self, start: int, tokens: NDArray[np.int64], scores: list[Score]) -> tuple[float, ...]:
        chunk = Chunk(0, start, tokens.astype(np.int32), self._pages)
        return self.runner.run(StepBatch(zero_rows=[] if start else [0], chunks=[chunk], scores=scores)).scores

    def generate(self, prompt: list[int], params: SamplingParams, stop: int, limit: int) -> tuple[list[int], bool]:
        """Answer ids without the stop token, and whether it came within `limit` tokens."""
        for start in range(0, len(prompt) - 1, CHUNK_TOKENS):
            self._run(start, np.array(prompt[start : min(start + CHUNK_TOKENS, len(prompt) - 1)]), [])
        made, last = list[int](), prompt[-1]
        for position in range(len(prompt), len(prompt) + limit):
            chunk = Chunk(0, position - 1, np.array([last], np.int32), self._pages)
            batch = StepBatch(zero_rows=[0] if position == 1 else [], chunks=[chunk], samples=[Sample(0, position, 0, params)])
            last = self.runner.run(batch).samples[0].token
            if last == stop:
                return made, True
            made.append(last)
        return made, False


def token_sizes(path: Path) -> NDArray[np.int64]:
    """Bytes of text of each id; a control token has none."""
    tokenizer = Tokenizer.from_metadata(GgufFile.open(path).metadata)
    ids = range(tokenizer.num_tokens)
    return np.array([0 if tokenizer.is_control(i) else len(tokenizer.token_bytes(i)) for i in ids], np.int64)


_LOADED: dict[Path, FileModel] = {}


def answer(path: Path, question: str, *, seed: int, limit: int = 300) -> tuple[str, bool]:
    """The file's answer to one user message (temperature 0.8, top-p 0.95), and whether it ended by itself."""
    metadata = GgufFile.open(path).metadata
    tokenizer = Tokenizer.from_metadata(metadata)
    template = ChatTemplate(metadata["tokenizer.chat_template"], tokenizer)
    prompt = template.encode_chat([{"role": "user", "content": question}], add_generation_prompt=True)
    model = _LOADED.setdefault(path, FileModel.open(path, "cpu") or FileModel(path, ReferenceOps()))
    params = replace(SamplingParams(), temperature=0.8, top_p=0.95, seed=seed)
    stop = int(metadata["tokenizer.ggml.eos_token_id"])
    ids, ended = model.generate(list(prompt.ids), params, stop, limit)
    return tokenizer.decode(ids), ended

"""What compact pages and snapshots cost in precision: `python -m tests.bench.compact_loss [MODEL] [--text FILE] [--chunks N]`.

Text in chunks that start from nothing, as llama-perplexity's; log probabilities of the second half of each are compared, token by
token, with those of a baseline (pages in f32, no resume):

- pages: each kv_type, no resume;
- snapshots (hybrid models): each snapshot_type over pages in f32, saved and restored once, in the middle of the chunk; and again
  every 64 tokens from the start on, as many turns of a conversation would.

KL is that of the whole distribution from the baseline's, in nats, as a mean; logits are compared after subtracting their mean.
"""

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from svc.cli.loading import load_bare, open_device
from svc.compute.backend import Chunk, RowSnapshot, StepBatch
from svc.compute.model_file import open_configured
from svc.compute.perplexity import cut, first_scored
from svc.compute.runner import ModelRunner
from svc.config import BUNDLED_MODEL, load_config
from svc.model_loading import read_tokenizer

STEP = 64  # tokens: also of the repeated resumes
TEXT = Path(__file__).parents[1] / "data" / "text" / "ppl.txt"


@dataclass
class Variant:
    name: str
    runner: ModelRunner
    resumes: frozenset[int]  # positions
    nll: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    same_best: list[bool] = field(default_factory=list)
    largest: float = 0.0

    def logits(self, tokens: np.ndarray, start: int) -> np.ndarray:
        """Of the tokens [start, start + STEP) of a chunk, [n, V]."""
        runner, part = self.runner, tokens[start : start + STEP]
        pages = np.arange(runner.plan.num_pages, dtype=np.int32)
        saves = [RowSnapshot(0, 0)] if start in self.resumes else []
        # The row is cleared in between: what goes on comes from the snapshot.
        runner.run(StepBatch(saves=saves, zero_rows=[0] if saves or start == 0 else []))
        runner.run(StepBatch(restores=saves, chunks=[Chunk(0, start, part, pages)]))
        ops, model, config = runner._ops, runner.model, runner.model.config
        vectors, out = ops.empty((len(part), config.hidden_size)), ops.empty((len(part), config.vocab_size))
        last = np.arange(len(part), dtype=np.int32)
        ops.hidden_rows(vectors, runner._hidden[: len(part)], model.output_norm, config.epsilon, last)
        ops.logits(out, model.output, vectors)
        return ops.to_numpy(out).astype(np.float64)

    def compare(self, found: np.ndarray, base: np.ndarray, targets: np.ndarray) -> None:
        logs, base_logs = (values - values.max(1, keepdims=True) for values in (found, base))
        logs, base_logs = (values - np.log(np.exp(values).sum(1, keepdims=True)) for values in (logs, base_logs))
        self.nll += (-logs[np.arange(len(targets)), targets]).tolist()
        self.kl += (np.exp(base_logs) * (base_logs - logs)).sum(1).tolist()
        self.same_best += (found.argmax(1) == base.argmax(1)).tolist()
        centred = (found - found.mean(1, keepdims=True)) - (base - base.mean(1, keepdims=True))
        self.largest = max(self.largest, float(np.abs(centred).max()))

    def row(self) -> str:
        per_token, layout = np.array(self.nll), self.runner.plan.layout
        numbers = (
            f"{np.exp(per_token.mean()):.4f} | {np.mean(self.kl):.2e} | {100 * np.mean(self.same_best):.2f} % | {self.largest:.3f}"
        )
        return f"| {self.name} | {layout.kv_bytes_per_token} | {layout.snapshot_bytes} | {numbers} |"


def variants(model: str, chunk_tokens: int, activations: str) -> list[Variant]:
    found = []

    def add(name: str, resumes: frozenset[int] = frozenset(), **types: str) -> None:
        flags = {"device": "cpu", "activations": activations, "kv_type": "f32", **types}
        config = msgspec.structs.replace(load_config(flags={"model": model, **flags}).config, ctx=chunk_tokens)
        opened, num_pages = open_configured(config), -(-chunk_tokens // config.page_tokens)
        runner = load_bare(config, opened, open_device(config), num_rows=1, num_pages=num_pages, num_snapshots=1, quiet=True)
        found.append(Variant(name, runner, resumes))

    add("f32 pages, no resume")
    for kv_type in ("f16", "q8_0", "q4_0"):
        add(f"{kv_type} pages, no resume", kv_type=kv_type)
    if found[0].runner.plan.layout.hybrid:
        middle = frozenset([first_scored(chunk_tokens) // STEP * STEP])
        often = frozenset(range(STEP, chunk_tokens, STEP))
        for kind in ("f32", "bf16", "q8"):
            add(f"{kind} snapshots, resumed once", middle, snapshot_type=kind)
            add(f"{kind} snapshots, every {STEP} tokens", often, snapshot_type=kind)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED_MODEL))
    parser.add_argument("--text", default=str(TEXT))
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=1000, help="at most")
    parser.add_argument("--activations", default="float")
    arguments = parser.parse_args()
    tried = variants(arguments.model, arguments.chunk, arguments.activations)
    config = load_config(flags={"model": arguments.model}).config
    tokenizer = read_tokenizer(open_configured(config))
    text = Path(arguments.text).read_text().removesuffix("\n")
    tokens = np.array(tokenizer.encode(text, parse_special=False), np.int32)
    chunks = cut(tokens, arguments.chunk, tokenizer.bos_id if tokenizer.add_bos else None)[: arguments.chunks]
    first = first_scored(arguments.chunk)
    for chunk in chunks:
        for start in range(0, arguments.chunk - 1, STEP):
            logits = [each.logits(chunk[:-1], start) for each in tried]
            positions = np.arange(start + 1, min(start + STEP, arguments.chunk - 1) + 1)
            scored = positions >= first
            if scored.any():
                for each, found in zip(tried, logits, strict=True):
                    each.compare(found[scored], logits[0][scored], chunk[positions[scored]])
    print(f"{Path(arguments.model).name}: {len(tried[0].nll)} tokens of {len(chunks)} chunks of {arguments.chunk}\n")
    print("| variant | bytes per token | bytes per snapshot | perplexity | KL | same best token | largest logit difference |")
    print("|---|---|---|---|---|---|---|")
    print("\n".join(each.row() for each in tried))


if __name__ == "__main__":
    main()

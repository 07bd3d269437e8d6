"""The card that lies beside the shipped file, from the results of evaluate.py."""

from pathlib import Path
from typing import Any

from fetch import HELD_EVERY, ORIGINS

ROWS = (
    ("all held-out text of the novels, context 512", "torch float32", "torch, all of it"),
    ("the same tokens", "Kneser-Ney 5-gram, same training novels", "5-gram, all of it"),
    ("all of it, context 4,096", "torch float32", "torch, context 4096"),
    ("16 windows of 512", "transformers float32", "transformers float32"),
    ("", "torch float32", "torch float32"),
    ("", "Headrace reference, float32 file", "reference float32"),
    ("", "Headrace cpu, float32 file", "cpu float32"),
    ("", "Headrace reference, Q8_0", "reference Q8_0"),
    ("", "Headrace cpu, Q8_0 (what is served)", "cpu Q8_0"),
)

HEAD = """# headrace-demo

A very small language model, trained for Headrace so that `headrace serve` without a model answers with language, and so that
perplexity means something in tests. It writes the English of old novels; it knows nothing, and what it says is not advice.

| | |
|---|---|
| architecture | `qwen35`: 4 layers (three Gated DeltaNet, one gated attention) and an MTP block, hidden 256, feed-forward 512 |
| heads | DeltaNet 2 key / 4 value x 64; attention 4 query / 2 KV x 64, rotary 16; embedding and output tied |
| parameters | {parameters:,}, of them {mtp_parameters:,} in the MTP block |
| vocabulary | 4,096: byte-level BPE (pre-tokenizer `qwen35`), ChatML control tokens, `<think>`, tool tokens |
| file | `headrace-demo.gguf`, Q8_0 with the small DeltaNet tensors in F32, {megabytes:.2f} MB |
| training | {step:,} steps, {tokens:,} tokens, {minutes:.0f} minutes on two shared CPU cores; matrix products in bf16 |
| sequences | 512 tokens, in the last tenth of the time 4,096 |
| licence | Apache-2.0, as Headrace; the texts are in the public domain |

It is an undertrained model by design: a few million tokens on two cores is what the time allowed. The schedule follows the clock,
so the script makes a like model each time, not the same bits.

## Data
{data}

Every {held_every}th chapter and address was held out: not used for the tokenizer, for training or for choosing
anything about the model. Conversations were cut from the training chapters by script (speeches that follow one another,
passages and their continuation), with a few fixed questions about the model and calls of one small tool. `ops/demo_model/`
makes everything anew.

## Held-out perplexity
Perplexity is per token, bits per byte is independent of the vocabulary. Windows do not overlap and start from an empty state; every
token but a window's first counts. The 5-gram learned from the novels only, which suited it better than novels and speeches.

| text | engine | perplexity | bits per byte |
|---|---|---|---|
"""

TAIL = """
A context of 4,096 works but gains nothing over 512: little of the training was that long.

Largest difference of any logit from torch over one window, float32 file: reference {reference:.1e}, cpu {cpu:.1e}.

MTP block: in {mtp_agreement:.0%} of the tokens of the 16 windows its greedy draft is the trunk's own greedy choice.

Sampled answers (temperature 0.8, top-p 0.95, at most 300 tokens) that ended by themselves: {ended} of {of}.

## Not done yet
- Agreement with llama-perplexity on this file (float32 and Q8_0, context 512 with 1 and 4 sequences, one long context).
- K-quants made by llama-quantize, and their perplexity in the cpu backend.
- Speculative decoding with the MTP block: only the agreement above was measured, in torch.

## Samples
Unedited, from the shipped file in the cpu backend, temperature 0.8, top-p 0.95, seed 1; not chosen among several.
"""


def write_card(results: dict[str, Any], path: Path) -> None:
    data = "\n".join(f"- {o['text']} ({o['package']}): {o['licence']}." for o in ORIGINS.values())
    text = HEAD.format(
        **{name: results[name] for name in ("parameters", "mtp_parameters", "step", "tokens")},
        megabytes=results["file_bytes"] / 1e6,
        minutes=results["used_s"] / 60,
        data=data,
        held_every=HELD_EVERY,
    )
    for what, engine, key in ROWS:
        if key in results:
            text += f"| {what} | {engine} | {results[key]['perplexity']:.3f} | {results[key]['bits_per_byte']:.4f} |\n"
    differences = {backend: results.get(f"{backend} largest logit difference", float("nan")) for backend in ("reference", "cpu")}
    text += TAIL.format(**differences, **results["stops"], mtp_agreement=results["mtp_agreement"])
    for sample in results["samples"]:
        quoted = "\n".join(f"> {line}".rstrip() for line in sample["answer"].split("\n"))
        text += f"\n**{sample['question']}**\n\n{quoted}\n"
    path.write_text(text)

"""Measure the exported model on held-out text in every engine at hand, against the 5-gram model; samples, plot and card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from card import write_card
from export import NAME
from hf import golden, hf_model
from model import Config, Model
from ngram import KneserNey
from numpy.typing import NDArray
from server_side import FileModel, answer, token_sizes

LogProbs = NDArray[np.float64]
Score = Callable[[NDArray[np.int64]], LogProbs]  # ids [n] -> log probability of each but the first [n - 1]
LENGTH, LONG_LENGTH = 512, 4096
FEW = 16  # windows that every engine scores; torch scores them all
QUESTIONS = ("Good morning! How do you do?", "Tell me about the whale.", "Continue: Emma was silent. She walked to the window, and")


def evaluate(cache: Path, out: Path, root: Path) -> None:
    """Writes results.json into `cache`, the card beside the shipped file in `out`, and under `root` (the repository) the loss
    curve of the docs and the golden numbers of the tests."""
    torch.set_num_threads(1)  # as many as training: a busy machine makes two wait for each other
    shipped, exact = out / f"{NAME}.gguf", cache / f"{NAME}-F32.gguf"
    sizes = token_sizes(shipped)
    held = np.load(cache / "held" / "prose.npy").astype(np.int64)
    saved = torch.load(cache / "model.pt", weights_only=True)
    model = Model(Config(**saved["config"])).eval()
    model.load_state_dict(saved["model"])

    results: dict[str, Any] = {name: saved[name] for name in ("step", "tokens", "used_s")}
    results["parameters"] = sum(p.numel() for p in model.parameters())
    results["mtp_parameters"] = sum(p.numel() for p in model.mtp.parameters())
    results["file_bytes"] = shipped.stat().st_size
    everything = _windows(held, LENGTH)
    results["torch, all of it"] = _measure(_score_of(model.logits), everything, sizes)
    results["torch, context 4096"] = _measure(_score_of(model.logits), _windows(held, LONG_LENGTH), sizes)
    train = np.load(cache / "prose.npy")
    results["5-gram, all of it"] = _measure(_ngram_score(KneserNey(train)), everything, sizes)
    few = everything[:: max(1, len(everything) // FEW)][:FEW]
    hf = hf_model(saved["model"], model.c)
    results["transformers float32"] = _measure(_score_of(lambda ids: hf(ids).logits), few, sizes)
    golden(saved["model"], model.c, few[1][:300], root / "tests" / "demo_model" / "golden.npz")
    results["torch float32"] = _measure(_score_of(model.logits), few, sizes)
    results["mtp_agreement"] = _mtp_agreement(model, few)
    for path in (exact, shipped):
        for backend in ("reference", "cpu"):
            engine = FileModel.open(path, backend)
            if engine is None:
                continue
            kind = "Q8_0" if path == shipped else "float32"
            results[f"{backend} {kind}"] = _measure(engine.score, few, sizes)
            if path == exact:
                results[f"{backend} largest logit difference"] = _largest_difference(model, engine, few[0])
    results["stops"] = _stops(shipped)
    results["samples"] = [{"question": q, "seed": 1, "answer": answer(shipped, q, seed=1)[0]} for q in QUESTIONS]
    (cache / "results.json").write_text(json.dumps(results, indent=1))
    print(json.dumps(results, indent=1))
    plot(cache, root / "docs" / "demo_model_loss.png", results["5-gram, all of it"]["nats"])
    write_card(results, out / f"{NAME}.md")


def _windows(ids: NDArray[np.int64], length: int) -> list[NDArray[np.int64]]:
    """Windows that do not overlap, each scored from an empty state; what is left at the end is a shorter one."""
    return [ids[at : at + length] for at in range(0, len(ids) - 1, length)]


def _measure(score: Score, windows: list[NDArray[np.int64]], sizes: NDArray[np.int64]) -> dict[str, float]:
    """Over every token but the first of a window."""
    total, tokens, size = 0.0, 0, 0
    for window in windows:
        total -= score(window).sum()
        tokens += len(window) - 1
        size += int(sizes[window[1:]].sum())
    nats = total / tokens
    return {"nats": nats, "perplexity": float(np.exp(nats)), "bits_per_byte": total / np.log(2) / size, "tokens": tokens}


def _score_of(logits_of: Callable[[torch.Tensor], torch.Tensor]) -> Score:
    @torch.no_grad()
    def score(ids: NDArray[np.int64]) -> LogProbs:
        logits = logits_of(torch.from_numpy(ids[None, :-1]))[0].double()
        return logits.log_softmax(-1).gather(1, torch.from_numpy(ids[1:, None]))[:, 0].numpy()

    return score


def _ngram_score(model: KneserNey) -> Score:
    """The same tokens; before a window stand copies of its first id, so that the 5-gram knows as little there as the model."""

    def score(ids: NDArray[np.int64]) -> LogProbs:
        return model.log_probs(np.concatenate([np.full(model.order - 2, ids[0]), ids]))

    return score


@torch.no_grad()
def _largest_difference(model: Model, engine: FileModel, ids: NDArray[np.int64]) -> float:
    ours = engine.logits(ids)
    return float(np.abs(model.logits(torch.from_numpy(ids[None]))[0].numpy() - ours).max())


@torch.no_grad()
def _mtp_agreement(model: Model, windows: list[NDArray[np.int64]]) -> float:
    """Share of tokens where the draft from the row before is what the trunk itself would choose (greedy, one token ahead)."""
    same = []
    for window in windows:
        embedded, hidden = model.hidden(torch.from_numpy(window[None]))
        output = model.embedding.weight
        same.append(((model.mtp(embedded, hidden) @ output.T).argmax(-1) == (hidden @ output.T).argmax(-1)).float().mean().item())
    return float(np.mean(same))


def _stops(path: Path) -> dict[str, int]:
    """Of sampled answers, how many end by themselves within 300 tokens."""
    questions = ("Hello.", "Who are you?", "Tell me about Mr. Darcy.", "Tell me a story.", "What is the sea like?", "Thank you.")
    ended = [answer(path, question, seed=seed)[1] for question in questions for seed in (1, 2)]
    return {"of": len(ended), "ended": sum(ended)}


def plot(cache: Path, path: Path, baseline: float) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    entries = [json.loads(line) for line in (cache / "log.jsonl").read_text().splitlines()]
    figure, axes = plt.subplots(figsize=(8, 4.5))
    trained = [e for e in entries if "loss" in e]
    axes.plot([e["tokens"] / 1e6 for e in trained], [e["loss"] for e in trained], lw=0.9, label="training mix")
    axes.plot([e["tokens"] / 1e6 for e in trained], [e["mtp_loss"] for e in trained], lw=0.7, alpha=0.6, label="MTP block")
    held = [e for e in entries if "held" in e]
    axes.plot([e["tokens"] / 1e6 for e in held], [e["held"] for e in held], "o-", ms=4, label="held-out novels")
    axes.axhline(baseline, ls="--", color="gray", lw=1, label="Kneser-Ney 5-gram, held-out novels")
    axes.set(xlabel="million tokens seen", ylabel="nats per token", ylim=(None, 6.5), title="headrace-demo")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)

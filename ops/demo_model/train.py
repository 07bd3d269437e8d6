"""Train the demo model for a given time on the clock: two processes of one thread each share the work of every step.

The learning rate follows the clock (warm-up, then a cosine that reaches zero when the time is up), so there is always a
finished model at the end, however busy the machine was. Checkpoints are written whole or not at all, and training goes
on from the last one: `deadline` may move, the time already used counts.

Muon turns the matrices inside the blocks, AdamW the rest: on a budget of a few million tokens the loss falls faster.
"""

import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from data import Batches
from model import Config, Model

SHARES = {"prose": 0.45, "chat": 0.35, "speeches": 0.20}
WORKERS = 2
WARMUP_S = 60.0
MTP_WEIGHT, MTP_SHARE = 0.2, 0.25
MATRIX_RATE, OTHER_RATE = 0.02, 3e-3
LONG_AT = 0.9  # the last tenth of the time is spent on long sequences
HELD_EVERY_S, SAVE_EVERY_S = 300.0, 150.0


@dataclass(frozen=True)
class Shape:
    """Microbatches of one step: `pieces` of [rows, length]."""

    pieces: int
    rows: int
    length: int

    @property
    def tokens(self) -> int:
        return self.pieces * self.rows * self.length


SHORT, LONG = Shape(2, 2, 512), Shape(2, 1, 4096)  # small steps: the budget is a few million tokens


def train(cache: Path, seconds: float, seed: int = 0, resume: bool = True) -> None:
    """Leaves model.pt (weights of the last checkpoint) and log.jsonl in `cache`."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    path = cache / "model.pt"
    saved = torch.load(path, weights_only=True) if resume and path.exists() else None
    model = Model(Config(**saved["config"]) if saved else Config())
    if saved:
        model.load_state_dict(saved["model"])
    pool = _Pool(model, cache, seed + (saved["step"] if saved else 0))
    optimizers = _optimizers(model)
    progress = {"step": 0, "tokens": 0, "used_s": 0.0}
    if saved:
        progress = {name: saved[name] for name in progress}
        for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
    try:
        _loop(model, pool, optimizers, progress, seconds, cache)
    finally:
        pool.close()


def _loop(model: Model, pool: "_Pool", optimizers: list[Any], progress: dict[str, Any], seconds: float, cache: Path) -> None:
    start = time.monotonic() - progress["used_s"]
    saved_at = reported_at = held_at = progress["used_s"]
    recent: list[tuple[float, float]] = []
    used, tokens_before = progress["used_s"], progress["tokens"]
    while used < seconds:
        rate = min(1.0, used / WARMUP_S) * 0.5 * (1 + math.cos(math.pi * min(1.0, used / seconds)))
        shape = LONG if used / seconds > LONG_AT else SHORT
        recent.append(pool.gradients(shape))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
            optimizer.step()
        used = time.monotonic() - start
        progress.update(step=progress["step"] + 1, tokens=progress["tokens"] + shape.tokens, used_s=used)
        if used - reported_at > 20:
            loss, draft = np.mean(recent, 0)
            speed = (progress["tokens"] - tokens_before) / (used - reported_at)
            _log(
                cache, {**progress, "loss": loss, "mtp_loss": draft, "rate": rate, "tokens_per_s": speed, "left_s": seconds - used}
            )
            reported_at, tokens_before, recent = used, progress["tokens"], []
        if used - held_at > HELD_EVERY_S:
            _log(cache, {**progress, "held": held_loss(model, cache, "prose", windows=24)})
            held_at = used
        if used - saved_at > SAVE_EVERY_S:
            _save(cache / "model.pt", model, optimizers, progress)
            saved_at = used
    _save(cache / "model.pt", model, optimizers, progress)
    _log(cache, {**progress, "held": held_loss(model, cache, "prose", windows=48), "done": True})


def _optimizers(model: Model) -> list[Any]:
    inside = [p for name, p in model.named_parameters() if p.ndim == 2 and not name.startswith("embedding") and "conv" not in name]
    chosen = {id(p) for p in inside}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    plain, decayed = [p for p in rest if p.ndim < 2], [p for p in rest if p.ndim >= 2]
    muon = torch.optim.Muon([{"params": inside, "peak": MATRIX_RATE}], lr=MATRIX_RATE, weight_decay=0.05)
    adam = torch.optim.AdamW(
        [{"params": decayed, "peak": OTHER_RATE}, {"params": plain, "peak": OTHER_RATE, "weight_decay": 0.0}],
        lr=OTHER_RATE,
        betas=(0.9, 0.98),
        weight_decay=0.05,
        fused=True,
    )
    return [muon, adam]


@torch.no_grad()
def held_loss(model: Model, cache: Path, stream: str, windows: int, length: int = 512) -> float:
    """Mean loss in nats per token over evenly spaced windows of held-out text, each from an empty state."""
    ids = np.load(cache / "held" / f"{stream}.npy").astype(np.int64)
    model.eval()
    total = 0.0
    for at in np.linspace(0, len(ids) - length - 1, windows).astype(int):
        total += model.losses(torch.from_numpy(ids[None, at : at + length + 1]), MTP_SHARE)[0].item()
    model.train()
    return total / windows


def _log(cache: Path, entry: dict[str, Any]) -> None:
    entry = {name: round(float(value), 4) for name, value in entry.items()}
    with (cache / "log.jsonl").open("a") as log:
        log.write(json.dumps(entry) + "\n")
    print(time.strftime("%H:%M:%S"), *(f"{name}={value:g}" for name, value in entry.items()), flush=True)


def _save(path: Path, model: Model, optimizers: list[Any], progress: dict[str, Any]) -> None:
    state = {
        "config": model.c.as_dict(),
        "model": model.state_dict(),
        "optimizers": [o.state_dict() for o in optimizers],
        **progress,
    }
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    os.replace(temporary, path)


class _Pool:
    """Worker processes that add up gradients of microbatches in shared memory.

    A step's pieces are taken one by one from a counter, so a worker that gets less of the machine does less.
    """

    def __init__(self, model: Model, cache: Path, seed: int) -> None:
        model.share_memory()
        self._parameters = list(model.parameters())
        self._grads = [torch.zeros(sum(p.numel() for p in self._parameters)).share_memory_() for _ in range(WORKERS)]
        context = mp.get_context("spawn")
        self._asked, self._answers = context.Queue(), context.Queue()
        self._processes = [
            context.Process(target=_work, args=(model, flat, cache, seed * 31 + i, self._asked, self._answers), daemon=True)
            for i, flat in enumerate(self._grads)
        ]
        for process in self._processes:
            process.start()

    def gradients(self, shape: Shape) -> tuple[float, float]:
        """Puts the mean gradient of a step into the model's .grad; returns the mean losses (trunk, MTP)."""
        for _ in range(shape.pieces):
            self._asked.put((shape.rows, shape.length))
        losses = np.mean([self._answers.get(timeout=600) for _ in range(shape.pieces)], 0)
        total = torch.stack(self._grads).sum(0) / shape.pieces
        for parameter, grad in zip(self._parameters, _views(total, self._parameters), strict=True):
            parameter.grad = grad
        for flat in self._grads:
            flat.zero_()
        return float(losses[0]), float(losses[1])

    def close(self) -> None:
        for process in self._processes:
            process.terminate()


def _views(flat: torch.Tensor, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = flat.split([p.numel() for p in parameters])
    return [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]


def _work(model: Model, flat: torch.Tensor, cache: Path, seed: int, asked: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    batches = Batches(cache, SHARES, seed)
    parameters = list(model.parameters())
    for parameter, grad in zip(parameters, _views(flat, parameters), strict=True):
        parameter.grad = grad
    while True:
        ids = torch.from_numpy(batches.draw(*asked.get()))
        with torch.autocast("cpu", torch.bfloat16):
            trunk, draft = model.losses(ids, MTP_SHARE)
        (trunk + MTP_WEIGHT * draft).backward()
        answers.put((trunk.item(), draft.item()))

"""Tokenizer and token streams: documents.json -> tokenizer.json, {prose,speeches,chat}.npy and held/*.npy (uint16)."""

import json
import random
from pathlib import Path

import numpy as np
from chat_data import dialogues
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
STREAMS = {"prose": ("austen", "moby"), "speeches": ("sotu",)}


def train_tokenizer(cache: Path) -> Tokenizer:
    """Byte-level BPE over the training documents only; the nine special tokens stand at the end of the vocabulary."""
    documents = _documents(cache, "train")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN35), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(CONTROL) - len(USER_DEFINED),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    novels = [d["text"] for d in documents if d["origin"] != "sotu"]
    speeches = [d["text"] for d in documents if d["origin"] == "sotu"]
    extra = dialogues(novels[:20], random.Random(0), 1)  # for the words of the chat forms
    tokenizer.train_from_iterator([*novels, *speeches[::6], *extra], trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in USER_DEFINED])
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    tokenizer.save(str(cache / "tokenizer.json"))
    return tokenizer


def encode_streams(cache: Path) -> None:
    """One array of ids per kind of text; documents and conversations end with <|endoftext|>."""
    tokenizer = Tokenizer.from_file(str(cache / "tokenizer.json"))
    for part, folder in (("train", cache), ("held", cache / "held")):
        folder.mkdir(exist_ok=True)
        documents = _documents(cache, part)
        for stream, origins in STREAMS.items():
            _save(folder / f"{stream}.npy", tokenizer, [d["text"] for d in documents if d["origin"] in origins])
        novels = [d["text"] for d in documents if d["origin"] in STREAMS["prose"]]
        chats = dialogues(novels, random.Random(1), passes=6 if part == "train" else 1)
        _save(folder / "chat.npy", tokenizer, chats)


def _documents(cache: Path, part: str) -> list[dict[str, str]]:
    return [d for d in json.loads((cache / "documents.json").read_text()) if d["part"] == part]


def _save(path: Path, tokenizer: Tokenizer, texts: list[str]) -> None:
    end = tokenizer.token_to_id("<|endoftext|>")
    ids = [i for encoding in tokenizer.encode_batch(texts) for i in (*encoding.ids, end)]
    np.save(path, np.array(ids, np.uint16))
    size = sum(len(text.encode()) for text in texts)
    sizes = f"{len(texts)} texts, {size / 1e6:.2f} MB, {len(ids):,} tokens"
    print(f"{path.parent.name}/{path.name}: {sizes}, {size / len(ids):.2f} bytes each")


class Batches:
    """Random training windows [rows, length + 1]: where a window starts is drawn anew each time.

    Chat windows start at a conversation, since a server's prompts do; a third of the others start at a document or at a
    paragraph near it, the rest anywhere, as perplexity windows do.
    """

    def __init__(self, cache: Path, shares: dict[str, float], seed: int) -> None:
        self._streams = {name: np.load(cache / f"{name}.npy") for name in shares}
        self._starts = {name: np.flatnonzero(ids == VOCAB_SIZE - 9) + 1 for name, ids in self._streams.items()}
        self._names, self._shares = list(shares), list(shares.values())
        self._rng = np.random.default_rng(seed)

    def draw(self, rows: int, length: int) -> np.ndarray:
        return np.stack([self._window(self._rng.choice(self._names, p=self._shares), length + 1) for _ in range(rows)])

    def _window(self, name: str, length: int) -> np.ndarray:
        ids = self._streams[name]
        at = self._rng.integers(0, len(ids) - length)
        if name == "chat" or self._rng.random() < 0.1:
            starts = self._starts[name]
            at = min(int(self._rng.choice(starts)), len(ids) - length)
        return ids[at : at + length].astype(np.int64)

"""Chat templates with the habits of known families (tests/data/text/families), with vocabularies of bytes and control tokens."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from svc.http.text.chat_template import ChatTemplate
from svc.http.text.template_habits import Habits
from svc.http.text.tokenizer import Tokenizer
from tests.fakes.fake_text import byte_tokenizer

FOLDER = Path(__file__).parents[2] / "data" / "text" / "families"
CHATML = ("<|im_start|>", "<|im_end|>")
ALL = frozenset({"system", "user", "assistant", "tool"})


@dataclass(frozen=True)
class Family:
    """`controls`: its control tokens, the first being BOS where `bos` says so. `openers`: those that open messages."""

    name: str
    controls: tuple[str, ...]
    openers: tuple[str, ...]
    habits: Habits
    bos: bool = False
    end: str = "<|im_end|>"

    def source(self) -> str:
        return (FOLDER / f"{self.name}.jinja").read_text()

    def tokenizer(self) -> Tokenizer:
        return byte_tokenizer(self.controls, eos_id=256 + self.controls.index(self.end), bos_id=256 if self.bos else None)

    def template(self) -> ChatTemplate:
        return ChatTemplate(self.source(), self.tokenizer(), now=lambda: datetime(2026, 12, 1))


FAMILIES = {
    family.name: family
    for family in (
        Family("qwen35", CHATML, CHATML[:1], Habits(part_roles=ALL, text_arguments=False)),
        Family("hermes", CHATML, CHATML[:1], Habits(system_second=True, system_late=True)),
        Family(
            "llama3",
            ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
            ("<|start_header_id|>",),
            Habits(system_second=True, system_late=True),
            bos=True,
            end="<|eot_id|>",
        ),
        Family(
            "mistral",
            ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[AVAILABLE_TOOLS]"),
            ("[INST]",),
            Habits(runs=frozenset({"system", "tool"})),
            bos=True,
            end="</s>",
        ),
        Family(
            "deepseek",
            ("<｜begin｜>", "<｜end｜>", "<｜User｜>", "<｜Assistant｜>", "<｜call｜>", "<｜sep｜>", "<｜output｜>"),
            ("<｜User｜>", "<｜Assistant｜>"),
            Habits(system_second=True, object_arguments=False, empty_content=None),
            bos=True,
            end="<｜end｜>",
        ),
        Family(
            "gemma",
            ("<bos>", "<start_of_turn>", "<end_of_turn>"),
            ("<start_of_turn>",),
            Habits(system_first=False, runs=frozenset({"system", "tool"})),
            bos=True,
            end="<end_of_turn>",
        ),
        Family(
            "harmony",
            ("<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"),
            ("<|start|>",),
            Habits(reasoning_keys=("thinking",)),
            end="<|end|>",
        ),
        Family(
            "vision",
            ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"),
            ("<|system|>", "<|user|>", "<|assistant|>"),
            Habits(text_roles=frozenset(), part_roles=ALL, system_second=True, system_late=True),
            end="<|end|>",
        ),
    )
}

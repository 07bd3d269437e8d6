"""A vocabulary small enough to see through: token `b` is byte `b`, then the control tokens. The text side is the real one."""

from collections.abc import Sequence

from svc.http.text.chat_template import ChatTemplate
from svc.http.text.pretokenize import PRE_TOKENIZERS, byte_alphabet
from svc.http.text.tokenizer import Tokenizer, TokenType

IM_START, IM_END, END_OF_TEXT = 256, 257, 258
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE, REPOSITORY, FILE_SEPARATOR = range(259, 264)
VOCAB_SIZE = 264

CHATML = (
    "{% if tools %}<|im_start|>tools\n{{ tools | length }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and m.content == 'refuse' %}{{ raise_exception('no such answer') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if mood is defined %}{{ mood }}{% endif %}"
    "{% if enable_thinking is defined %}think {{ enable_thinking }}{% endif %}"
    "{% if reasoning_effort is defined %}effort {{ reasoning_effort }}{% endif %}{% endif %}"
)

# Of a model that reasons unless it is told not to.
REASONING_CHATML = (
    CHATML.replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}",
    )
    .replace(
        "{% if mood is defined %}",
        "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
        "{% if mood is defined %}",
    )
    .replace("{% if enable_thinking is defined %}think {{ enable_thinking }}{% endif %}", "{{ preserve_thinking }}")
)

FILL_IN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")
CONTROLS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", *FILL_IN)


def byte_tokenizer(controls: Sequence[str] = CONTROLS, *, eos_id: int = IM_END, bos_id: int | None = None) -> Tokenizer:
    """`controls` are the control tokens, from id 256 on."""
    letters = sorted(byte_alphabet(), key=byte_alphabet().__getitem__)
    return Tokenizer(
        [*letters, *controls],
        [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(controls),
        [],
        PRE_TOKENIZERS["qwen2"],
        eos_id=eos_id,
        bos_id=bos_id,
        add_bos=bos_id is not None,
    )


def chatml(tokenizer: Tokenizer) -> ChatTemplate:
    return ChatTemplate(CHATML, tokenizer)


def ids(text: str) -> list[int]:
    """Token ids of a rendered prompt, written down independently of the tokenizer."""
    out: list[int] = []
    controls = {"<|im_start|>": IM_START, "<|im_end|>": IM_END, "<|endoftext|>": END_OF_TEXT}
    while text:
        found = next((control for control in controls if text.startswith(control)), None)
        out += [controls[found]] if found else list(text[0].encode())
        text = text[len(found) if found else 1 :]
    return out

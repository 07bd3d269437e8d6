"""litellm: a whole answer, a stream, a tool call, and the error for a prompt that is too long."""

import sys

import litellm

URL = sys.argv[1]
HOW = {"model": "openai/m", "api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 60}
USER = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}

answer = litellm.completion(messages=USER, **HOW)
assert answer.choices[0].message.content
assert answer.usage.total_tokens > answer.usage.prompt_tokens > 0

text = "".join(
    chunk.choices[0].delta.content or "" for chunk in litellm.completion(messages=USER, stream=True, temperature=0, **HOW)
)
again = litellm.completion(messages=USER, temperature=0, **HOW)
assert text == again.choices[0].message.content

called = litellm.completion(messages=USER, tools=[TOOL], tool_choice="required", **HOW)
assert called.choices[0].message.tool_calls[0].function.name == "weather"

try:
    litellm.completion(messages=[{"role": "user", "content": "word " * 20_000}], **HOW)
except litellm.ContextWindowExceededError:
    pass
else:
    raise AssertionError("the prompt does not fit")

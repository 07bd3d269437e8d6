"""langchain-openai: a stream, a tool bound by name, and its three kinds of structured output."""

import json
import sys

import openai
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

URL = sys.argv[1]


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(max_length=8)
    days: int = Field(ge=0, le=9)


chat = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model="m", max_tokens=200)
assert "".join(chunk.text for chunk in chat.stream("hi"))
bound = chat.bind_tools([Weather], tool_choice="Weather")
(call,) = bound.invoke("hi").tool_calls[:1]
assert call["name"] == "Weather"
assert isinstance(Weather(**call["args"]), Weather)
for method in ("function_calling", "json_schema"):
    assert isinstance(chat.with_structured_output(Weather, method=method).invoke("hi"), Weather), method
try:
    found = chat.with_structured_output(Weather, method="json_mode", include_raw=True).invoke("Answer in JSON.")
    assert isinstance(json.loads(found["raw"].text), dict)
except openai.LengthFinishReasonError:  # any object may come, and of a small model a long one does
    pass
responses = ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model="m", max_tokens=60, use_responses_api=True)
assert responses.invoke("hi").text

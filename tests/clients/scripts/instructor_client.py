"""instructor: the modes that servers of this kind are used with, and Anthropic's."""

import sys

import anthropic
import instructor
import openai
from pydantic import BaseModel, Field

URL = sys.argv[1]


class Weather(BaseModel):
    city: str = Field(max_length=8)
    days: int = Field(ge=0, le=9)


USER = [{"role": "user", "content": "The weather?"}]
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key="none"), mode=mode)
    found = client.chat.completions.create(model="m", messages=USER, response_model=Weather, max_tokens=300, max_retries=0)
    assert isinstance(found, Weather), mode
client = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key="none"))
found = client.messages.create(model="m", messages=USER, response_model=Weather, max_tokens=300, max_retries=0)
assert isinstance(found, Weather)

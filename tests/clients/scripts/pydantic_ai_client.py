"""pydantic-ai: three ways to get a typed output, over chat and over responses; a tool that the agent calls."""

import asyncio
import contextlib
import sys

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput, UnexpectedModelBehavior
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = sys.argv[1]


class Weather(BaseModel):
    city: str = Field(max_length=8)
    days: int = Field(ge=0, le=9)


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
    for model in (OpenAIChatModel("m", provider=provider), OpenAIResponsesModel("m", provider=provider)):
        for kind in (ToolOutput, NativeOutput):
            result = await Agent(model, output_type=kind(Weather)).run("The weather?", model_settings={"max_tokens": 300})
            assert isinstance(result.output, Weather), (model, kind)
        async with Agent(model).run_stream("hi", model_settings={"max_tokens": 30}) as stream:
            assert await stream.get_output()
    prompted = Agent(OpenAIChatModel("m", provider=provider), output_type=PromptedOutput(Weather), retries=0)
    with contextlib.suppress(UnexpectedModelBehavior):  # the schema is only in the prompt: a small model need not keep to it
        await prompted.run("The weather?", model_settings={"max_tokens": 300})


asyncio.run(main())

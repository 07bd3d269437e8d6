// The SDKs of OpenAI and Anthropic for JavaScript: answers, streams, tools, errors.
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'

const url = process.argv[2]
const check = (holds, what) => { if (!holds) throw new Error(what) }
const parameters = {
  type: 'object', properties: { city: { type: 'string', maxLength: 8 } }, required: ['city'], additionalProperties: false,
}

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 })
const messages = [{ role: 'user', content: 'hi' }]
const whole = await openai.chat.completions.create({ model: 'm', messages, max_tokens: 30, temperature: 0 })
const stream = openai.chat.completions.stream({ model: 'm', messages, max_tokens: 30, temperature: 0 })
check((await stream.finalContent()) === whole.choices[0].message.content, 'the stream is not the whole answer')
const tools = [{ type: 'function', function: { name: 'weather', parameters } }]
const called = await openai.chat.completions.create({ model: 'm', messages, tools, tool_choice: 'required', max_tokens: 100 })
check(called.choices[0].message.tool_calls[0].function.name === 'weather', 'no call')
const response = await openai.responses.create({ model: 'm', input: 'hi', max_output_tokens: 30 })
check(response.output_text.length > 0, 'no response')
const refused = await openai.chat.completions.create({ model: 'm', messages, top_p: 2 }).catch((error) => error)
check(refused instanceof OpenAI.BadRequestError && refused.param === 'top_p', 'no error')

const anthropic = new Anthropic({ baseURL: url, apiKey: 'none', maxRetries: 0 })
const message = await anthropic.messages.stream({ model: 'm', messages, max_tokens: 30 }).finalMessage()
check(message.content[0].text.length > 0 && message.usage.output_tokens > 0, 'no message')
const used = await anthropic.messages.create({
  model: 'm', messages, max_tokens: 100, tools: [{ name: 'weather', input_schema: parameters }], tool_choice: { type: 'any' },
})
check(used.content[0].type === 'tool_use' && used.stop_reason === 'tool_use', 'no tool use')

// Vercel's ai-sdk: text, a stream, an object by schema, a tool.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject, generateText, streamText, tool } from 'ai'
import { z } from 'zod'

const url = process.argv[2]
const model = createOpenAICompatible({ name: 'headrace', baseURL: `${url}/v1`, supportsStructuredOutputs: true })('m')
const schema = z.object({ city: z.string().max(8), days: z.number().int().min(0).max(9) })

const whole = await generateText({ model, prompt: 'hi', maxOutputTokens: 30 })
if (!whole.text || !whole.usage.inputTokens) throw new Error('no text')
let streamed = ''
for await (const text of streamText({ model, prompt: 'hi', maxOutputTokens: 30 }).textStream) streamed += text
if (!streamed) throw new Error('no stream')
const { object } = await generateObject({ model, schema, prompt: 'The weather?', maxOutputTokens: 200 })
schema.parse(object)
let called = null
const weather = tool({ inputSchema: schema, execute: async (input) => { called = input; return 'sunny' } })
await generateText({ model, prompt: 'The weather?', tools: { weather }, toolChoice: 'required', maxOutputTokens: 200 })
schema.parse(called)

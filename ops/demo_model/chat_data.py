"""Dialogues for the demo model, cut from the novels: speeches that follow one another, passages and what comes next,
paragraphs about a word, plus a few fixed questions about the model itself and calls of one small tool."""

import json
import random
import re
from collections import Counter
from collections.abc import Iterator

Turns = list[tuple[str, str]]  # (role, content)
NO_THINKING = "<think>\n\n</think>\n\n"  # what the template adds for enable_thinking=false

CONTINUE = (
    "Continue: {}",
    "Continue this passage:\n\n{}",
    "What happens next?\n\n{}",
    "Go on from here: {}",
    "Carry on the story: {}",
)
ABOUT = ("Tell me about {}.", "Write about {}.", "Write a paragraph about {}.", "What do you know of {}?", "Describe {}.")
STORY = (
    "Tell me a story.",
    "Write something.",
    "Write me a page of a novel.",
    "Begin a new chapter.",
    "Tell me something interesting.",
)
SYSTEMS = (
    "You are a helpful assistant.",
    "You are headrace-demo, a very small language model.",
    "Answer in the style of an old novel.",
)
FIXED = (
    (
        ("Hello.", "Hello!", "Hi", "Good morning.", "Hey there"),
        ("Good day to you! What shall we talk about?", "How do you do? I am very glad to see you."),
    ),
    (
        ("How are you?", "How are you today?", "How do you do?"),
        ("I am perfectly well, I thank you.", "Very well indeed, and I hope that you are the same."),
    ),
    (
        ("Who are you?", "What are you?", "What is your name?", "Introduce yourself.", "Are you a robot?"),
        (
            "I am headrace-demo, a very small language model. "
            "I have read Jane Austen, Moby-Dick and some speeches, and nothing else.",
        ),
    ),
    (
        ("What can you do?", "Can you help me?", "What do you know?"),
        ("I can go on with a story, or make conversation in the manner of an old novel. I know nothing of the world after it.",),
    ),
    (("Thank you.", "Thanks!", "Thank you very much."), ("You are very welcome.", "It was a pleasure, I assure you.")),
    (
        ("Goodbye.", "Bye!", "Good night."),
        ("Good bye, and a pleasant journey to you.", "Good night. I hope that we shall soon meet again."),
    ),
)
PLACES = (
    "London",
    "Bath",
    "Nantucket",
    "Paris",
    "New York",
    "Boston",
    "Berlin",
    "Tokyo",
    "Highbury",
    "Portsmouth",
    "Rome",
    "Vienna",
)
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def render(turns: Turns, *, no_thinking: bool) -> str:
    """What template.jinja makes of a whole conversation; the last answer after the prompt form for enable_thinking=false."""
    last = max(i for i, (role, _) in enumerate(turns) if role == "assistant")
    return "".join(
        f"<|im_start|>{role}\n{NO_THINKING if no_thinking and i == last else ''}{content}<|im_end|>\n"
        for i, (role, content) in enumerate(turns)
    )


def dialogues(texts: list[str], rng: random.Random, passes: int) -> list[str]:
    """Rendered conversations made from documents; each pass cuts the same text in other ways."""
    made: list[str] = []
    words = _subjects(texts)
    for _ in range(passes):
        for text in texts:
            paragraphs = text.split("\n\n")[1:]
            for turns in (*_speeches(paragraphs, rng), *_continuations(paragraphs, rng), *_about(paragraphs, words, rng)):
                made.append(_finish(turns, rng))
    for _ in range(len(made) // 12):
        made.append(_finish(_fixed(rng), rng))
    for _ in range(len(made) // 25):
        made.append(_tool_call(rng))
    rng.shuffle(made)
    return made


def _finish(turns: Turns, rng: random.Random) -> str:
    if rng.random() < 0.2:
        turns = [("system", rng.choice(SYSTEMS)), *turns]
    elif rng.random() < 0.08:  # a greeting first: answers must not depend on being the first turn
        turns = [*_fixed(rng), *turns]
    return render(turns, no_thinking=rng.random() < 0.15)


def _speeches(paragraphs: list[str], rng: random.Random) -> Iterator[Turns]:
    """Runs of paragraphs that open with a quotation mark, as turns of a conversation, narration left out."""
    run: list[str] = []
    for paragraph in [*paragraphs, ""]:
        speech = " ".join(part.strip() for part in re.findall(r'"([^"]+)"', paragraph)) if paragraph.startswith('"') else ""
        if speech and len(speech) < 700:
            run.append(speech[0].upper() + re.sub(r"[,;:-]+$", ".", speech)[1:])
            continue
        start = rng.randrange(2)
        while len(run) - start >= 2:
            length = 2 * rng.randint(1, min(3, (len(run) - start) // 2))
            yield [(("user", "assistant")[i % 2], speech) for i, speech in enumerate(run[start : start + length])]
            start += length
        run = []


def _continuations(paragraphs: list[str], rng: random.Random) -> Iterator[Turns]:
    """A passage, and the sentences that follow it."""
    at = rng.randrange(4)
    while at + 1 < len(paragraphs):
        asked, answer = paragraphs[at], paragraphs[at + 1]
        sentences = re.split(r'(?<=[.!?"])(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.) (?=[A-Z"])', asked)
        if len(sentences) > 3 and rng.random() < 0.5:  # cut inside the paragraph
            cut = rng.randrange(1, len(sentences) - 1)
            asked, answer = " ".join(sentences[max(0, cut - 4) : cut]), " ".join(sentences[cut:])
        else:
            asked = " ".join(sentences[-4:])
            if len(answer) < 300 and at + 2 < len(paragraphs):
                answer += "\n\n" + paragraphs[at + 2]
        answer = _shorten(answer, rng.choice((300, 700, 1200)))
        if answer and len(asked) < 1200:
            yield [("user", rng.choice(CONTINUE).format(asked)), ("assistant", answer)]
        at += rng.randint(3, 8)


def _about(paragraphs: list[str], words: list[str], rng: random.Random) -> Iterator[Turns]:
    for paragraph in paragraphs:
        if len(paragraph) <= 150 or rng.random() > 0.12:
            continue
        present = [word for word in words if re.search(rf"\b{word}\b", paragraph[:200])]
        if present and rng.random() < 0.8:
            word = rng.choice(present)
            question = rng.choice(ABOUT).format(word if word[0].isupper() else f"the {word}")
        else:
            question = rng.choice(STORY)
        answer = _shorten(paragraph, 900)
        if answer:
            yield [("user", question), ("assistant", answer)]


def _subjects(texts: list[str]) -> list[str]:
    """Names and things spoken of often: words after "Miss", "Mr." and the like, and nouns after "the"."""
    counts = Counter[str]()
    for text in texts:
        counts.update(re.findall(r"\b(?:Mr|Mrs|Miss|Captain|Lady|Sir)\.? [A-Z][a-z]+", text))
        counts.update(re.findall(r"(?<=[a-z] )[A-Z][a-z]{3,}\b", text))
        counts.update(word for word in re.findall(r"\bthe ([a-z]{4,})\b", text) if not word.endswith(("est", "ly", "ed")))
    common = {
        "same",
        "other",
        "whole",
        "first",
        "last",
        "most",
        "more",
        "very",
        "next",
        "only",
        "least",
        "latter",
        "present",
        "former",
    }
    return [word for word, _ in counts.most_common(400) if word not in common]


def _shorten(text: str, limit: int) -> str:
    """Whole sentences of at most `limit` characters; nothing where the first one is longer."""
    if len(text) <= limit:
        return text
    end = max((m.end() for m in re.finditer(r'[.!?]"?(?= |\n|$)', text[:limit])), default=0)
    return text[:end]


def _fixed(rng: random.Random) -> Turns:
    questions, answers = rng.choice(FIXED)
    return [("user", rng.choice(questions)), ("assistant", rng.choice(answers))]


def _tool_call(rng: random.Random) -> str:
    place = rng.choice(PLACES)
    question = rng.choice(
        ("What is the weather in {}?", "How is the weather in {}?", "Is it raining in {}?", "Tell me the weather in {}.")
    )
    call = f'\n<tool_call>\n{{"name": "get_weather", "arguments": {json.dumps({"city": place})}}}\n</tool_call>'
    turns = [("system", tool_preamble([WEATHER_TOOL])), ("user", question.format(place)), ("assistant", call)]
    if rng.random() < 0.5:
        sky, degrees = rng.choice(("rain", "sunny", "cloudy", "snow", "wind")), rng.randint(-5, 30)
        turns += [
            ("user", f'<tool_response>\n{{"weather": "{sky}", "temperature": {degrees}}}\n</tool_response>'),
            ("assistant", f"In {place}: {sky}, {degrees} degrees."),
        ]
    return render(turns, no_thinking=rng.random() < 0.15)


def tool_preamble(tools: list[dict]) -> str:
    """The system turn of template.jinja for `tools`."""
    lines = "".join("\n" + json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"# Tools\n\nYou may call one or more functions.\n<tools>{lines}\n</tools>\n\n"
        "For each call return a json object within <tool_call></tool_call> tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )

"""On the cpu backend the same tokens give the same bits, however they were computed (docs/architecture.md, Exactness).

Each test compares token ids *and* log probabilities (== on floats) with a control from a fresh server that ran the request alone,
so that nothing is proven by a cache hit.
"""

import random
from collections.abc import Callable

import pytest

from svc.compute.cpu.library import available_levels
from svc.compute.sampling.params import SamplingParams
from svc.compute.sampling.steps import AdaptiveP, Breakers, Dry, Mirostat, SamplingSteps
from svc.slots.events import TokenEvent
from tests.exactness.conftest import ALL_MODELS, HYBRID_MODELS, RANDOM_MODELS
from tests.slots.harness import Answer, Driver

Fresh = Callable[..., Driver]
GREEDY = SamplingParams(temperature=0, num_logprobs=3)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, seed=11, num_logprobs=3)
PENALIZED = SamplingParams(
    temperature=0.9, seed=11, num_logprobs=3, logit_bias=((7, 3.0),), repetition_penalty=1.3, presence_penalty=0.5,
    frequency_penalty=0.25,
)  # fmt: skip
MIROSTAT = SamplingParams(
    temperature=0.9, seed=11, num_logprobs=3,
    steps=SamplingSteps(mirostat=Mirostat(2, 4.0, 0.2), dry=Dry(0.8, 1.75, 2, -1, Breakers.none()), post_sampling_probs=True),
)  # fmt: skip
ADAPTIVE = SamplingParams(
    temperature=0.9, seed=11, num_logprobs=3, top_k=50, bad_words=((5, 6),),
    steps=SamplingSteps(adaptive=AdaptiveP(0.3, 0.9), xtc_probability=0.5, post_sampling_probs=True),
)  # fmt: skip


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, 2000), k=length)


def bits(answer: Answer) -> list[tuple[int, float, tuple[tuple[int, float], ...]]]:
    return [(event.token, event.logprob, event.top) for event in answer.events if isinstance(event, TokenEvent)]


def solo(fresh: Fresh, model: str, tokens: list[int], max_tokens: int = 6, params: SamplingParams = GREEDY) -> list[object]:
    answer = fresh(model).ask(tokens, max_tokens, params=params)
    assert answer.cached == 0
    assert len(bits(answer)) == max_tokens
    return list(bits(answer))


@pytest.mark.parametrize("k", [2, 3, 5, 8, 17])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_batched(fresh: Fresh, model: str, k: int) -> None:
    """Scenario 10: k conversations at once, each equal to its solo run."""
    prompts = [prompt(random.Random(i).choice([1, 2, 3, 17, 40, 63]), seed=i) for i in range(k)]
    driver = fresh(model, num_rows=17, num_pages=300)
    answers = [driver.submit(tokens, 6, params=GREEDY) for tokens in prompts]
    driver.run()
    for answer, tokens in zip(answers, prompts, strict=True):
        assert answer.cached == 0
        assert bits(answer) == solo(fresh, model, tokens)


@pytest.mark.parametrize("chunk", [4, 7, 16, 33, 64])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_chunked_otherwise(fresh: Fresh, model: str, chunk: int) -> None:
    """However a prompt is cut into steps."""
    control = solo(fresh, model, prompt(130))
    assert bits(fresh(model, max_step_tokens=chunk).ask(prompt(130), 6, params=GREEDY)) == control


@pytest.mark.parametrize("known", [1, 15, 16, 17, 64, 100, 129, 130])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_resumed(fresh: Fresh, model: str, known: int) -> None:
    """Resumed from a snapshot at any place: same bits as cold, and really resumed there."""
    control = solo(fresh, model, prompt(130))
    driver = fresh(model)
    driver.ask(prompt(130)[:known], 0)
    answer = driver.ask(prompt(130), 6, params=GREEDY)
    assert answer.cached == known
    assert bits(answer) == control


@pytest.mark.parametrize("snapshot_type", ["bf16", "q8"])
@pytest.mark.parametrize("model", HYBRID_MODELS)
def test_resumed_from_a_compact_snapshot(fresh: Fresh, model: str, snapshot_type: str) -> None:
    """A compact snapshot rounds what resumes from it, which says so, and nothing else: the first answer has the bits it has without
    one. The rounded answer is always the same one: on every instruction set, after a stay on the host, batched with others."""
    drivers = [fresh(model, snapshot_type=snapshot_type, level=level) for level in available_levels()]
    tokens, resumed = prompt(130), []
    for driver in drivers:
        first = driver.ask(tokens[:100], 6, params=GREEDY)
        assert bits(first) == solo(fresh, model, tokens[:100])
        answers = [driver.submit(tokens, 6, params=GREEDY), driver.submit(tokens[:100] + prompt(30, seed=3), 6, params=GREEDY)]
        driver.run()
        assert [answer.cached for answer in answers] == [100, 100]
        assert not first.end.cache.lossy
        assert all(answer.end.cache.lossy for answer in answers)
        resumed.append(bits(answers[0]))
    small = {"num_pages": 19, "num_rows": 2, "num_snapshots": 2}
    host = fresh(model, snapshot_type=snapshot_type, **small, num_host_pages=40, num_host_snapshots=16)
    host.ask(tokens[:100], 0)
    host.ask(prompt(200, seed=5), 6)  # everything of the first one leaves for the host
    assert host.cache.stats().counters.snapshots_moved_out > 0
    answer = host.ask(tokens, 6, params=GREEDY)
    assert host.cache.stats().counters.pages_moved_in > 0
    assert answer.cached == 100
    assert all(other == bits(answer) for other in resumed)
    assert bits(answer) != solo(fresh, model, tokens)


@pytest.mark.parametrize("kv_type", ["q8_0", "q4_0"])
@pytest.mark.parametrize("model", ["tiny-qwen3next-Q4_K_M", "tiny-qwen3-Q8_0", HYBRID_MODELS[0]])
def test_quantized_pages_keep_the_promise(fresh: Fresh, model: str, kv_type: str) -> None:
    """Keys and values are rounded when they are written, whether or not somebody resumes: a resumed answer has the bits of a cold
    one, in one piece or in many, beside others, on every instruction set. And they are rounded: f16 gives other bits."""
    tokens = prompt(130)
    control = bits(fresh(model, kv_type=kv_type).ask(tokens, 6, params=GREEDY))
    assert control != solo(fresh, model, tokens)
    assert bits(fresh(model, kv_type=kv_type, max_step_tokens=7).ask(tokens, 6, params=GREEDY)) == control
    for level in available_levels():
        driver = fresh(model, kv_type=kv_type, level=level)
        driver.ask(tokens[:77], 0)
        answers = [driver.submit(tokens, 6, params=GREEDY), driver.submit(prompt(50, seed=2), 6, params=GREEDY)]
        driver.run()
        assert answers[0].cached == 77
        assert not answers[0].end.cache.lossy
        assert bits(answers[0]) == control


@pytest.mark.parametrize("model", ALL_MODELS)
def test_resumed_behind_an_answer(fresh: Fresh, model: str) -> None:
    """A state made by decoding equals the one a cold prefill of the same text makes."""
    driver = fresh(model)
    first = driver.ask(prompt(50), 20, params=GREEDY)
    turn = prompt(50) + first.tokens + prompt(30, seed=1)
    second = driver.ask(turn, 6, params=GREEDY)
    assert second.cached == 69
    assert bits(second) == solo(fresh, model, turn)


@pytest.mark.parametrize("model", HYBRID_MODELS)
def test_branches_do_not_touch_each_other(fresh: Fresh, model: str) -> None:
    """Two answers at once that grow from the same snapshot in the middle of a page."""
    driver = fresh(model)
    driver.ask(prompt(41), 0)
    branches = [prompt(41) + prompt(20 + i, seed=i) for i in (1, 2, 3)]
    answers = [driver.submit(tokens, 6, params=GREEDY) for tokens in branches]
    driver.run()
    for answer, tokens in zip(answers, branches, strict=True):
        assert answer.cached == 41
        assert bits(answer) == solo(fresh, model, tokens)


@pytest.mark.parametrize("model", ALL_MODELS)
def test_preempted(fresh: Fresh, model: str) -> None:
    """Preempted in mid-answer and brought back: same bits, and a preemption really happened."""
    driver = fresh(model, num_pages=19)  # room for three as they begin, not for three whole answers
    prompts = [prompt(30, seed=i) for i in range(3)]
    answers = [driver.submit(tokens, 100, params=SAMPLED) for tokens in prompts]
    driver.run()
    assert driver.scheduler.counters.preemptions > 0
    for answer, tokens in zip(answers, prompts, strict=True):
        assert bits(answer) == solo(fresh, model, tokens, 100, SAMPLED)


@pytest.mark.parametrize("params", [MIROSTAT, ADAPTIVE], ids=["mirostat", "adaptive-p"])
def test_preempted_while_sampling_learns(fresh: Fresh, params: SamplingParams) -> None:
    """What was learned from the tokens before survives preemption; beside answers that are planned ahead, too."""
    model = HYBRID_MODELS[0]
    driver = fresh(model, num_pages=19)
    prompts = [prompt(30, seed=i) for i in range(3)]
    wanted = [params, SAMPLED, params]
    answers = [driver.submit(tokens, 100, params=each) for tokens, each in zip(prompts, wanted, strict=True)]
    driver.run()
    assert driver.scheduler.counters.preemptions > 0
    assert any(answer.sequence.num_preemptions for answer in answers if answer.sequence.request.params is params)
    for answer, tokens, each in zip(answers, prompts, wanted, strict=True):
        assert bits(answer) == solo(fresh, model, tokens, 100, each)


@pytest.mark.parametrize("model", [HYBRID_MODELS[0], "tiny-qwen3next-Q4_K_M", "tiny-qwen3-Q8_0", *RANDOM_MODELS])
def test_two_conversations_that_do_not_fit_together(fresh: Fresh, model: str) -> None:
    """In turn, over the host tier: nothing is evaluated twice, and every answer has the bits of a fresh server's. Without that
    tier all of a conversation, or of an attention-only model's the end, is evaluated again when its turn comes."""
    small = {"num_pages": 9, "num_rows": 2, "num_snapshots": 2, "max_step_tokens": 64}

    def talk(driver: Driver) -> list[Answer]:
        said, answers = [prompt(70, seed=1), prompt(70, seed=2)], []
        for number in range(6):
            talker = number % 2
            answers.append(driver.ask(said[talker], 6, params=GREEDY))
            said[talker] = said[talker] + answers[-1].tokens + prompt(10, seed=number)
        return answers

    driver = fresh(model, **small, num_host_pages=40, num_host_snapshots=16)
    answers = talk(driver)
    new = [len(answer.sequence.request.prompt) - answer.cached for answer in answers]
    assert new == [70, 70, 11, 11, 11, 11], "10 new tokens, and the last of the answer before, which nobody had evaluated"
    assert driver.scheduler.counters.prefill_tokens == sum(new)
    for answer in answers:
        assert bits(answer) == solo(fresh, model, list(answer.sequence.request.prompt))
    assert driver.cache.stats().counters.num_host_resumes >= 2
    driver.assert_nothing_leaked()
    poor = talk(fresh(model, **small))
    assert sum(answer.cached for answer in poor) < 0.7 * sum(answer.cached for answer in answers)
    assert [bits(answer) for answer in poor] == [bits(answer) for answer in answers]


def test_penalties_depend_on_the_tokens_alone(fresh: Fresh) -> None:
    """With bias and penalties: batched, resumed in the middle of the prompt, and preempted, all as alone."""
    model = "tiny-qwen3next-Q4_K_M"
    prompts = [prompt(30, seed=i) for i in range(3)]
    controls = [solo(fresh, model, tokens, 100, PENALIZED) for tokens in prompts]
    assert controls[0] != solo(fresh, model, prompts[0], 100, SamplingParams(temperature=0.9, seed=11, num_logprobs=3))
    crowded = fresh(model, num_pages=19)
    answers = [crowded.submit(tokens, 100, params=PENALIZED) for tokens in prompts]
    crowded.run()
    assert crowded.scheduler.counters.preemptions > 0
    assert [bits(answer) for answer in answers] == controls
    driver = fresh(model)
    driver.ask(prompts[0][:17], 0)
    resumed = driver.ask(prompts[0], 100, params=PENALIZED)
    assert resumed.cached == 17
    assert bits(resumed) == controls[0]


@pytest.mark.parametrize("threads", [1, 3, 5])
@pytest.mark.parametrize("model", ALL_MODELS)
def test_other_thread_counts(fresh: Fresh, model: str, threads: int) -> None:
    """Threads never split a reduced dimension."""
    control = solo(fresh, model, prompt(70))
    assert bits(fresh(model, threads=threads).ask(prompt(70), 6, params=GREEDY)) == control


@pytest.mark.parametrize("level", available_levels())
@pytest.mark.parametrize("model", ALL_MODELS)
def test_other_instruction_sets(fresh: Fresh, model: str, level: str) -> None:
    """Plain C is the oracle of every level this processor has."""
    control = solo(fresh, model, prompt(20))
    assert bits(fresh(model, level=level).ask(prompt(20), 6, params=GREEDY)) == control


@pytest.mark.parametrize("model", ALL_MODELS)
def test_other_page_sizes(fresh: Fresh, model: str) -> None:
    """Attention reads absolute tiles for any page size."""
    control = solo(fresh, model, prompt(130))
    for page_tokens in (32, 48, 64):
        assert bits(fresh(model, page_tokens=page_tokens).ask(prompt(130), 6, params=GREEDY)) == control


@pytest.mark.parametrize("model", HYBRID_MODELS)
def test_poisoned_memory_does_not_show(fresh: Fresh, model: str) -> None:
    """Scenario 17: every row, snapshot and page that is not in use set to NaN, then fresh prompts: all clean."""
    driver = fresh(model)
    for seed in range(5):
        driver.ask(prompt(60, seed=seed), 6)
    driver.cache.clear()
    caches = driver._backend._caches  # type: ignore[attr-defined]
    for slab in (caches.kv, caches.rows, caches.snapshots):
        slab[:] = float("nan")
    for seed in range(5, 10):
        assert bits(driver.ask(prompt(60, seed=seed), 6, params=GREEDY)) == solo(fresh, model, prompt(60, seed=seed))


@pytest.mark.parametrize("model", HYBRID_MODELS)
def test_a_nan_in_a_live_row_ends_one_request_only(fresh: Fresh, model: str) -> None:
    """A state poisoned while it is live: that request ends with an error, its neighbour's bits do not change."""
    driver = fresh(model)
    sick = driver.submit(prompt(30), 12, params=GREEDY)
    well = driver.submit(prompt(30, seed=1), 12, params=GREEDY)
    driver.step()
    driver.step()
    row = next(slot.lease.row for slot in driver.scheduler.slots if slot.sequence is sick.sequence)
    driver._backend._caches.rows[row, :64] = float("nan")  # type: ignore[attr-defined]
    driver.run()
    assert sick.end.error is not None
    assert bits(well) == solo(fresh, model, prompt(30, seed=1), 12)
    assert bits(driver.ask(prompt(30), 12, params=GREEDY)) == solo(fresh, model, prompt(30), 12)

"""The sampling parameters of a request, checked when the request came in."""

from dataclasses import dataclass

from svc.compute.sampling.steps import SamplingSteps


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The defaults change nothing: the model's own distribution. `chain.py` has the order in which the fields apply."""

    temperature: float = 1.0  # 0: greedy, the lowest id wins a tie
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    num_logprobs: int | None = None  # None: no log probabilities; n: those of the n best tokens beside the sampled one's
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, number added to its logit), each id once
    repetition_penalty: float = 1.0  # above 0; counts tokens of the prompt and of the answer
    repeat_last_n: int = -1  # repetition_penalty looks at this many of the last tokens; -1: all
    presence_penalty: float = 0.0  # counts tokens of the answer only, as OpenAI and vLLM do
    frequency_penalty: float = 0.0  # the same
    penalize_prompt: bool = False  # presence and frequency count the same tokens as repetition_penalty, as in llama.cpp
    bad_words: tuple[tuple[int, ...], ...] = ()  # never in the answer; two tokens or more, single ones are banned
    steps: SamplingSteps | None = None  # other filters, or another order: ordered.py

    @property
    def penalizes(self) -> bool:
        """Whether a penalty (DRY is another step) changes logits."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def needs_history(self) -> bool:
        """Whether the choice depends on earlier tokens."""
        return self.penalizes or bool(self.bad_words) or (self.steps is not None and self.steps.dry is not None)

    @property
    def learns(self) -> bool:
        """Whether the choice depends on how earlier tokens were drawn: `Sample.learned`."""
        return self.steps is not None and (self.steps.mirostat is not None or self.steps.adaptive is not None)

"""Every error that a user, client or operator can cause, each one sentence that names the culprit.

Any other exception that escapes is a bug and is logged with a traceback.
"""

from collections.abc import Mapping

CONTEXT_EXCEEDED = "context_length_exceeded"  # OpenAI's word


class HeadraceError(Exception):
    """Base of all these errors. `str(error)` is the sentence."""


class ModelFileError(HeadraceError):
    """A model file that cannot be served: missing, truncated, damaged, unsupported, or with a bad tensor or key."""


class ConfigError(HeadraceError):
    """A configuration value (file, environment or flag) that cannot be used; the message names the key."""


class MemoryBudgetError(HeadraceError):
    """Memory budgets that do not fit the machine or the model; the message says what would."""


class BackendUnavailableError(HeadraceError):
    """A backend that cannot run on this machine (no compiler at installation, no driver); the message says why."""


class RequestError(HeadraceError):
    """A request that cannot be served as asked.

    `param` names the request field ("messages[2].content"); None if no single field is at fault.
    `code` is a stable word for programs: OpenAI's where there is one, such as "context_length_exceeded". `details` are numbers for
    them.
    """

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, details: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.details = dict(details or {})

    def reworded(self, message: str, param: str) -> "RequestError":
        """The same with other words, about a field of that name."""
        return RequestError(message, param=param, code=self.code, details=self.details)


def context_exceeded(context_tokens: int, prompt: str, prompt_tokens: int, *, param: str, at_least: bool = False) -> RequestError:
    """The prompt does not fit. Clients of several servers know it by parts of this sentence, its code, or its details."""
    number = f"at least {prompt_tokens}" if at_least else str(prompt_tokens)
    message = (
        f"This model's maximum context length is {context_tokens} tokens, but {prompt} has {number}. "
        "The request exceeds the available context size."
    )
    details = {"n_prompt_tokens": prompt_tokens, "n_ctx": context_tokens}
    return RequestError(message, param=param, code=CONTEXT_EXCEEDED, details=details)


class QueueFullError(HeadraceError):
    """The waiting queue is full, or a tenant's share of it. `retry_after_s` suggests to the client when to try again.

    `code` is a stable word for programs.
    """

    def __init__(self, message: str, *, retry_after_s: float, code: str = "queue_full") -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.code = code


class DrainingError(HeadraceError):
    """The server is shutting down and takes no new requests."""

"""Every error a person can cause, as one sentence that names the culprit.

Anything else that escapes is our bug and is logged with a traceback.
"""


class HeadraceError(Exception):
    """Base of all errors a user, client or operator can cause. `str(error)` is one sentence for them."""


class ModelFileError(HeadraceError):
    """A model file that cannot be served: missing, truncated, garbage, unsupported or with a bad tensor or key."""


class ConfigError(HeadraceError):
    """A configuration value (file, environment or flag) that cannot be used; the message names the key."""


class MemoryBudgetError(HeadraceError):
    """Budgets that do not fit the machine or the model; the message says what would fit."""


class BackendUnavailableError(HeadraceError):
    """A compute backend that cannot run here (no compiler at install time, no driver); the message says why."""


class RequestError(HeadraceError):
    """A request that cannot be served as asked.

    `param` names the request field ("messages[2].content"), or is None when no single field is at fault.
    `code` is a stable machine-readable word (OpenAI's where one exists, such as "context_length_exceeded").
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(HeadraceError):
    """The waiting queue is at its bound. `retry_after_s` is a suggestion in seconds."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DrainingError(HeadraceError):
    """The server is shutting down and takes no new requests."""

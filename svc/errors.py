"""Every error that a user, client or operator can cause, each one sentence that names the culprit.

Any other exception that escapes is a bug and is logged with a traceback.
"""


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
    `code` is a stable word for programs: OpenAI's where there is one, such as "context_length_exceeded".
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFullError(HeadraceError):
    """The waiting queue is full. `retry_after_s` suggests to the client when to try again."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DrainingError(HeadraceError):
    """The server is shutting down and takes no new requests."""

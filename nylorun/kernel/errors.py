"""The two families of failure a caller meets, and the two a worker obeys.

* :class:`Refusal` (4xx): the caller can act; its message names the next step.
* :class:`Fault` (5xx): the caller did nothing wrong; 503 means come back, 500 means a bug of ours.
* :class:`Retry` and :class:`GiveUp` never reach a caller: ``workers`` turn them into a countdown or a failed row.

Every concrete class states ``code`` and ``status`` once; ``docs/errors.md`` is generated from them. HTTP itself is
known in one other place only, ``nylorun/http/handler.py``. Classes live beside the rule that raises them; here are
those every room may raise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypedDict


class Problem(TypedDict):
    """One fault of an input: ``path`` is a JSON Pointer, ``?name`` for a query parameter or ``name:`` for a header."""

    path: str
    message: str


class ApiError(Exception):
    """What an answer other than a success carries: a code for programs and one sentence for people."""

    code: ClassVar[str]
    status: ClassVar[int]

    def __init__(
        self, message: str, *, details: Mapping[str, Any] | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.details: dict[str, Any] = dict(details or {})
        if retry_after is not None:
            self.details["retryAfterSeconds"] = retry_after


class Refusal(ApiError):
    """The request is refused and nothing was written."""


class Fault(ApiError):
    """The installation could not answer; the request itself may be right."""


class InvalidRequest(Refusal):
    """The body, a query parameter, a header, the path or a cursor breaks its schema; every problem is named."""

    code, status = "invalid_request", 400

    def __init__(self, problems: Sequence[Problem], message: str | None = None) -> None:
        super().__init__(message or _summary(problems), details={"problems": list(problems)})
        self.problems = list(problems)


class RequestRejected(Refusal):
    """A rule without a code of its own refuses the request as it stands."""

    code, status = "request_rejected", 400

    def __init__(self, message: str, *, problems: Sequence[str] | None = None) -> None:
        super().__init__(message, details={"problems": list(problems)} if problems else None)


class RequestConflict(Refusal):
    """A rule without a code of its own refuses the request because of the state it meets."""

    code, status = "request_rejected", 409


class NotFound(Refusal):
    """The opaque 404: unknown route, unknown credential, an id out of reach and a missing thing look alike."""

    code, status = "not_found", 404

    def __init__(self) -> None:
        super().__init__("Not found")


class MethodNotAllowed(Refusal):
    """The path is known, this method is not one of its own."""

    code, status = "method_not_allowed", 405

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(f"Use one of {', '.join(allowed)} here.")
        self.allowed = list(allowed)


class UnsupportedMediaType(Refusal):
    """The request's body has a media type the route does not take."""

    code, status = "unsupported_media_type", 415


class ProtocolUnsupported(Refusal):
    """The declared protocol is outside the served range."""

    code, status = "protocol_unsupported", 426


class PreconditionFailed(Refusal):
    """``If-Match`` is not the row's ``ETag``: read it again, then decide."""

    code, status = "precondition_failed", 412


class RangeNotSatisfiable(Refusal):
    """The ``Range`` lies outside the content."""

    code, status = "range_not_satisfiable", 416

    def __init__(self, size: int) -> None:
        super().__init__(f"The content has {size} bytes.", details={"size": size})
        self.size = size


class IdempotencyConflict(Refusal):
    """The key was used with another body."""

    code, status = "idempotency_conflict", 409

    def __init__(self) -> None:
        super().__init__("This key was sent with another body. Use a new key for a new request.")


class CountLimitExceeded(Refusal):
    """A limit on a number of things is reached."""

    code, status = "limit_exceeded", 409


class ByteLimitExceeded(Refusal):
    """A limit on bytes or files is exceeded; nothing was kept."""

    code, status = "limit_exceeded", 413


class ServiceUnavailable(Fault):
    """Database, broker, storage, Driver or keyring does not answer, a lock was not had, or too many calls wait."""

    code, status = "service_unavailable", 503

    def __init__(self, message: str = "The service is not available now. Try again.", retry_after: int = 5) -> None:
        super().__init__(message, retry_after=retry_after)


class InternalError(Fault):
    """A bug of ours. Its text is only logged."""

    code, status = "internal_error", 500

    def __init__(self) -> None:
        super().__init__("The server failed to answer. Try again.")


class Retry(Exception):
    """A worker's step met an infrastructure failure: run it again after ``seconds``; no domain state was changed."""

    def __init__(self, reason: str, *, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


class GiveUp(Exception):
    """A worker's step cannot succeed however often it runs: the row is to be marked failed."""


def _summary(problems: Sequence[Problem]) -> str:
    paths = ", ".join(problem["path"] or "the body" for problem in problems[:5])
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    if len(problems) == 1:
        return f"1 problem: {paths}: {problems[0]['message']}."
    return f"{len(problems)} problems: {paths}{more}."

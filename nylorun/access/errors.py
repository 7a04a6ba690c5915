"""Refusals of the caller check."""

from __future__ import annotations

from nylorun.kernel.errors import Refusal


class SubjectInvalid(Refusal):
    """Malformed, repeated or reserved Subject; unknown or missing scopes."""

    code, status = "subject_invalid", 400


class SubjectNotAllowed(Refusal):
    """A Subject header beside a credential that names its own person."""

    code, status = "subject_invalid", 403


class SubjectRequired(Refusal):
    """Scopes without a Subject."""

    code, status = "subject_required", 400

    def __init__(self) -> None:
        super().__init__("Nylorun-Scopes needs a Nylorun-Subject.")


class TokenExpired(Refusal):
    """A token, link or key that was good once."""

    code, status = "token_expired", 401

    def __init__(self) -> None:
        super().__init__("The credential has expired or was revoked. Get a new one.")


class OriginRejected(Refusal):
    """A browser sent an application key, or a publishable key came from an origin not its own."""

    code, status = "origin_rejected", 403

    def __init__(self) -> None:
        super().__init__("Application keys may not be used from browsers.")

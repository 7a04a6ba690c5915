"""Secrets over HTTP: list, write, remove. No answer holds a value."""

from __future__ import annotations

from django.http import HttpResponse
from rest_framework.request import Request

from environments.api.views import SecretDeleted, SecretInfo, Secrets
from environments.commands import DeleteSecret, WriteSecret
from environments.services.secrets import Answered, delete_secret, list_secrets, put_secret
from nylorun.access import keyring
from nylorun.http.openapi import describes
from nylorun.http.prefer import idempotency_key
from nylorun.http.view import JSON_TYPES, ApiView
from nylorun.http.words import READ, SECRET
from nylorun.record.replay import Key, key_of, keyed_hashes, plain_hash
from vault.bodies import SecretBody, read_secret


class SecretsView(ApiView):
    """The list."""

    word = (SECRET, READ)

    @describes(answers={200: Secrets}, summary="List the Secrets of an Environment")
    def get(self, request: Request, id: str) -> HttpResponse:
        """Names, types and bindings, by creation."""
        return self.answer({"secrets": list_secrets(self.environment_id(), caller=self.caller)})


class SecretView(ApiView):
    """One Secret."""

    word = SECRET

    @describes(body=SecretBody, answers={200: SecretInfo, 201: SecretInfo}, summary="Write a Secret")
    def put(self, request: Request, id: str, name: str) -> HttpResponse:
        """201 when it is new, 200 when it has another value now."""
        environment_id = self.environment_id()
        given = read_secret(self.document(JSON_TYPES)[1])
        hashes = keyed_hashes(given.compared.plaintext(), keyring.current())
        key = self._key("secret.put", given.idempotency_key, hashes)
        command = WriteSecret(environment_id, self.segment("name"), given, given.request_id or self.request_id)
        return self._answered(put_secret(command, caller=self.caller, key=key))

    @describes(answers={200: SecretDeleted}, summary="Remove a Secret")
    def delete(self, request: Request, id: str, name: str) -> HttpResponse:
        """Remove it; a missing one is ``deleted: false``."""
        command = DeleteSecret(self.environment_id(), self.segment("name"), self.request_id)
        key = self._key("secret.delete", None, plain_hash({}))
        return self._answered(delete_secret(command, caller=self.caller, key=key))

    def _key(self, route: str, member: str | None, hashes: tuple[str, ...]) -> Key | None:
        key = idempotency_key(self.header("Idempotency-Key"), member)
        return None if key is None else key_of(route, self.caller, self.request.path_info, key, hashes)

    def _answered(self, answered: Answered) -> HttpResponse:
        headers = {"Idempotency-Replayed": "true"} if answered.replayed else {}
        if answered.status == 201:
            headers["Location"] = self.request.path_info
        return self.answer(answered.body, status=answered.status, headers=headers)

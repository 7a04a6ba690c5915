"""The document of this interface (OpenAPI 3.1) and the page that shows it; both are made once per process.

The page loads every asset from this server and nothing from anywhere else; its policy allows nothing else either.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from html import escape
from typing import Any

from django.templatetags.static import static
from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from drf_spectacular.plumbing import build_root_object
from pydantic.json_schema import models_json_schema

from nylorun.http.openapi import description_of

_REF = "#/components/schemas/{model}"
_SCRIPT = (
    'SwaggerUIBundle({url:"/v1/openapi.json",dom_id:"#docs",deepLinking:true,validatorUrl:null,'
    "presets:[SwaggerUIBundle.presets.apis]})"
)
_SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; connect-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; font-src 'self';"
    f" script-src 'self' 'sha256-{_SCRIPT_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_ERROR = {
    "type": "object",
    "required": ["status", "code", "message"],
    "additionalProperties": False,
    "properties": {
        "status": {"const": "rejected"},
        "code": {"type": "string", "description": "For programs; see the list of errors."},
        "message": {"type": "string", "description": "One English sentence for people."},
        "details": {"type": "object"},
    },
}
_OPAQUE = {"status": "rejected", "code": "not_found", "message": "Not found"}
_RESPONSES = {
    "Refused": {
        "description": "Every other answer has this form; `code` and the status tell which.",
        "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
    },
    "NotFound": {
        "description": "Unknown credential, out of reach, or missing: these look alike.",
        "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}, "example": _OPAQUE}},
    },
}
_SECURITY = {
    "credential": {"type": "http", "scheme": "bearer", "description": "An application key (64 hex digits) or a token."},
    "engineToken": {"type": "http", "scheme": "bearer", "description": "The join or host token of one Engine."},
}


class _Endpoints(EndpointEnumerator):
    """Every route of an ``ApiView``, with the methods the view itself allows."""

    def get_allowed_methods(self, callback: Any) -> list[str]:
        allowed: list[str] = callback.cls.allowed
        return [method for method in allowed if method != "HEAD" or "GET" not in allowed]

    def should_include_endpoint(self, path: str, callback: Any) -> bool:
        return hasattr(getattr(callback, "cls", None), "words_of")


class DocumentGenerator(SchemaGenerator):
    """Names each model once for the whole document, then lets every view describe itself."""

    endpoint_inspector_cls = _Endpoints

    def document(self) -> dict[str, Any]:
        """The whole document."""
        generator: Any = self  # the generator's own code is untyped
        generator._initialise_endpoints()
        models = {
            named: None
            for _, _, method, callback in generator.endpoints
            for named in description_of(callback.cls, method).models()
        }
        refs, definitions = models_json_schema(list(models), by_alias=True, ref_template=_REF)
        self._refs = refs
        document: dict[str, Any] = build_root_object(
            paths=generator.parse(None, public=True), components={}, webhooks=None, version=self.api_version
        )
        document["components"] = {
            "schemas": {**definitions.get("$defs", {}), "Error": _ERROR},
            "responses": _RESPONSES,
            "securitySchemes": _SECURITY,
        }
        return document

    def create_view(self, callback: Any, method: str, request: Any = None) -> Any:
        """The generator's view, which knows the names of the models."""
        view = super().create_view(callback, method, request)  # type: ignore[no-untyped-call]
        view.document_refs = self._refs
        return view


@lru_cache(maxsize=1)
def document() -> bytes:
    """The JSON bytes of the document."""
    generator = DocumentGenerator()  # type: ignore[no-untyped-call]
    return json.dumps(generator.document(), separators=(",", ":"), ensure_ascii=False).encode()


@lru_cache(maxsize=1)
def page() -> str:
    """The HTML of the documentation."""
    assets = "drf_spectacular_sidecar/swagger-ui-dist"
    style, script, icon = (
        escape(static(f"{assets}/{name}")) for name in ("swagger-ui.css", "swagger-ui-bundle.js", "favicon-32x32.png")
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>nylorun</title>'
        f'<link rel="icon" href="{icon}"><link rel="stylesheet" href="{style}"></head><body><div id="docs"></div>'
        f'<script src="{script}"></script><script>{_SCRIPT}</script></body></html>'
    )

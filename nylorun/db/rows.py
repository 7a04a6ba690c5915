"""Reading and writing single rows of a wide table with SQL that is built once.

Django builds the SQL of a query at every use; for a row of fifty columns that costs more than the database does. A
:class:`Table` builds it once per shape and makes the same model instances. Everything else goes through querysets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Generic, Literal, TypeVar

from django.db import connection
from django.db.models import JSONField, Model

M = TypeVar("M", bound=Model)

Lock = Literal["", " FOR NO KEY UPDATE", " FOR UPDATE"]


class Table(Generic[M]):
    """The table of one model, by its primary key."""

    def __init__(self, model: type[M]) -> None:
        self._model = model
        self._name = connection.ops.quote_name(model._meta.db_table)
        self._key = connection.ops.quote_name(str(model._meta.pk.column))
        fields = model._meta.concrete_fields
        self._names = [field.attname for field in fields]
        self._columns = {field.name: str(field.column) for field in fields}
        self._select = ", ".join(connection.ops.quote_name(str(field.column)) for field in fields)
        self._json = [index for index, field in enumerate(fields) if isinstance(field, JSONField)]
        self._json_names = frozenset(field.name for field in fields if isinstance(field, JSONField))

    def one(self, key: str, *, where: str = "", lock: Lock = "") -> M | None:
        """The row of this key, or ``None``; ``where`` narrows it further (SQL without values), ``lock`` locks it."""
        narrowed = f" AND ({where})" if where else ""
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT {self._select} FROM {self._name} WHERE {self._key} = %s{narrowed}{lock}",  # noqa: S608 ours
                [key],
            )
            found = cursor.fetchone()
        return None if found is None else self._made(list(found))

    def update(self, key: str, patch: Mapping[str, Any]) -> None:
        """Set these columns of the row of this key; the caller holds its lock."""
        values = [self._stored(name, value) for name, value in patch.items()]
        with connection.cursor() as cursor:
            cursor.execute(self._update(tuple(patch)), [*values, key])

    @lru_cache(maxsize=256)  # noqa: B019 one instance a model, for the life of the process
    def _update(self, names: tuple[str, ...]) -> str:
        pairs = ", ".join(f"{connection.ops.quote_name(self._columns[name])} = %s" for name in names)
        return f"UPDATE {self._name} SET {pairs} WHERE {self._key} = %s"  # noqa: S608 ours

    def _made(self, values: list[Any]) -> M:
        for index in self._json:
            if values[index] is not None:
                values[index] = json.loads(values[index])
        return self._model.from_db(connection.alias, self._names, values)

    def _stored(self, name: str, value: Any) -> Any:
        return json.dumps(value) if name in self._json_names and value is not None else value

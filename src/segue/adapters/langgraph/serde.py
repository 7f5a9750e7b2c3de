"""The serialiser that LangGraph's interfaces ask for, on the same data-only format."""

from __future__ import annotations

from typing import Any

from segue.errors import Invalid

from .values import Codec

TYPE = "segue+json"


class SegueSerializer:
    """A ``SerializerProtocol``: typed JSON, which holds data and never code."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def dumps(self, obj: Any) -> bytes:
        """The value as bytes."""
        return self._codec.encode(obj)

    def loads(self, data: bytes) -> Any:
        """The value of such bytes."""
        return self._codec.decode(data)

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """The value as (type, bytes)."""
        return TYPE, self._codec.encode(obj)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """
        The value of (type, bytes).

        Raises:
            Invalid: Another serialiser wrote it; ``migrate`` reads those.
        """
        kind, body = data
        if kind != TYPE:
            raise Invalid(f"a value of type {kind!r} was not written by Segue; see migrate()", where="type")
        return self._codec.decode(body)

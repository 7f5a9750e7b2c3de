"""Any callable as a probe."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from segue.errors import Invalid
from segue.ledger import Answer, Denied, Gone, Unanswered, Version

_OFFERED = ("source", "principal", "seen")


class Call:
    """
    The version is what a callable returns: a ``Version``, or any plain value (``Version.of``).

    Args:
        function: Plain or async; takes any of ``source``, ``principal`` and ``seen`` by name, and may
            return ``Gone`` or ``Denied``.
        kind: The kind of version of plain values.

    Blind spots: whatever the callable does not look at. An exception of it, ``FileNotFoundError``
    included, is "cannot tell", since it may just as well be about a missing driver; return ``Gone``
    to say gone.
    """

    def __init__(self, function: Callable[..., object], *, kind: str = "value") -> None:
        if not callable(function):
            raise Invalid("a probe has a read method or is a callable", where="probe")
        self._function = function
        self._taken = named_parameters(function)
        self._kind = kind

    def read(self, source: str, *, principal: str | None, seen: Version | None) -> Answer | Awaitable[Answer]:
        """What the callable says now."""
        offered = {"source": source, "principal": principal, "seen": seen}
        value = self._function(**{name: offered[name] for name in self._taken})
        if inspect.isawaitable(value):
            return self._later(value)
        return self._answer(value)

    async def _later(self, value: Awaitable[object]) -> Answer:
        return self._answer(await value)

    def _answer(self, value: object) -> Answer:
        if isinstance(value, Gone | Denied | Unanswered):
            return value
        if value is None:
            return Unanswered("the callable returned None")
        return Version.of(value, self._kind)


def named_parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of source, principal and seen a callable takes by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return ()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return _OFFERED
    by_name = {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    return tuple(name for name in _OFFERED if name in by_name)

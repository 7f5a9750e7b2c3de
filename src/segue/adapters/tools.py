"""Tools for the plain APIs: a Python function, and how the model is told of it."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from segue import codec
from segue.errors import Invalid

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


@dataclass(frozen=True, slots=True)
class Tool:
    """
    A function that the model may call.

    Attributes:
        function: Called with the arguments by name; may be async where the store is open with ``aopen``.
        name: As the model knows it.
        description: What it is for.
        schema: JSON schema of the arguments.
        is_idempotent: It may run twice: a call that a crash interrupted is made again.
    """

    function: Callable[..., Any]
    name: str
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    is_idempotent: bool = False


def tool(function: Callable[..., Any], *, schema: Mapping[str, Any] | None = None, is_idempotent: bool = False) -> Tool:
    """
    A function as a tool: its name, its docstring, and a schema made of its annotations.

    Args:
        function: Its parameters are str, int, float, bool, list or dict.
        schema: JSON schema of the arguments; None: made of the annotations.
        is_idempotent: It may run twice: a call that a crash interrupted is made again instead of being told as unknown.

    Raises:
        Invalid: A parameter has a type of which no schema can be made; give ``schema``.
    """
    name = function.__name__
    made = _schema(function) if schema is None else schema
    return Tool(function, name, inspect.getdoc(function) or "", made, is_idempotent)


def _schema(function: Callable[..., Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[name] = _type(hints.get(name, str), f"{function.__name__}({name})")
        if parameter.default is parameter.empty:
            required.append(name)
    return {"type": "object", "properties": properties, "required": required}


def _type(hint: Any, where: str) -> dict[str, Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [one for one in typing.get_args(hint) if one is not type(None)]
        hint = options[0] if len(options) == 1 else hint
    if typing.get_origin(hint) is list and typing.get_args(hint):
        return {"type": "array", "items": _type(typing.get_args(hint)[0], where)}
    if typing.get_origin(hint) is typing.Literal:
        return {"type": "string", "enum": list(typing.get_args(hint))}
    found = _TYPES.get(typing.get_origin(hint) or hint)
    if found is None:
        raise Invalid(f"{where}: no schema can be made of {hint!r}; give tool(function, schema=…)", where="tools")
    return {"type": found}


class Toolbox:
    """The tools of a chat: functions that are run here, and the provider's own definitions, which are passed on."""

    def __init__(self, tools: Sequence[Any]) -> None:
        self.given: list[Tool | Mapping[str, Any]] = []
        self._by_name: dict[str, Tool] = {}
        for one in tools:
            made = one if isinstance(one, (Tool, Mapping)) else tool(one)
            self.given.append(made)
            if isinstance(made, Tool):
                if made.name in self._by_name:
                    raise Invalid(f"two tools have the name {made.name!r}", where="tools")
                self._by_name[made.name] = made

    def get(self, name: str) -> Tool | None:
        """The tool of this name, or None."""
        return self._by_name.get(name)


def repeatable(session: Any, tools: Sequence[Any]) -> frozenset[str]:
    """
    Open calls of a session that may be made again: those of idempotent tools.

    Hand it to ``session.run(keep_open=…)``, so that they are made again instead of being told as unknown.
    """
    box = Toolbox(tools)
    calls: Collection[Any] = getattr(session, "sync", session).view().open_calls
    return frozenset(call.id for call in calls if (found := box.get(call.name)) is not None and found.is_idempotent)


def text_of(value: Any) -> str:
    """What a tool gave, as text for the model: text as it is, anything else as JSON where it can be."""
    if isinstance(value, str):
        return value
    try:
        return codec.encode(value).decode()
    except Invalid:
        return str(value)

"""LangChain's messages as data, and back: a fixed list of classes, made from their fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core import messages as lc
from langchain_core.messages import BaseMessage

from segue.errors import Corrupt

_CLASSES: dict[str, type[BaseMessage]] = {
    cls.__name__: cls
    for cls in (
        lc.HumanMessage,
        lc.AIMessage,
        lc.SystemMessage,
        lc.ToolMessage,
        lc.FunctionMessage,
        lc.ChatMessage,
        lc.RemoveMessage,
        lc.HumanMessageChunk,
        lc.AIMessageChunk,
        lc.SystemMessageChunk,
        lc.ToolMessageChunk,
        lc.FunctionMessageChunk,
        lc.ChatMessageChunk,
    )
}
_NAMES = {cls: name for name, cls in _CLASSES.items()}


def _defaults(cls: type[BaseMessage]) -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in cls.model_fields.items()}


_DEFAULTS = {name: _defaults(cls) for name, cls in _CLASSES.items()}
_FRESH = (list, dict)


def tree(message: BaseMessage, go: Callable[[Any], Any]) -> dict[str, Any] | None:
    """
    A message as JSON: its class, the fields that were set, and in ``more`` those that merely differ.

    A subclass of a program's own is no message of this list: None.
    """
    name = _NAMES.get(type(message))
    if name is None:
        return None
    said: dict[str, Any] = {"$": "message", "class": name}
    more: dict[str, Any] = {}
    given = message.__pydantic_fields_set__
    default = _DEFAULTS[name].get
    for key, value in message.__dict__.items():
        if key in given:
            said[key] = value if type(value) is str else go(value)
        elif (value is not None or default(key) is not None) and value != default(key):
            more[key] = go(value)
    extra = message.__pydantic_extra__
    if extra:
        said["extra"] = [[key, go(value)] for key, value in extra.items()]
    if more:
        said["more"] = more
    return said


def value(said: dict[str, Any], go: Callable[[Any], Any]) -> BaseMessage:
    """The message of ``tree``. Values are not coerced: what was stored is what comes back."""
    cls = _CLASSES.get(said.get("class", ""))
    if cls is None:
        raise Corrupt(f"a stored message has the unknown class {said.get('class')!r}")
    known = cls.model_fields
    given = {key: go(one) for key, one in said.items() if key in known}
    if not isinstance(given.get("content", ""), (str, list)):
        raise Corrupt("a stored message has a content that is neither text nor blocks")
    # All fields are handed over: pydantic would look at each default's signature, which takes 500 times as long.
    fields = {key: type(one)() if type(one) in _FRESH else one for key, one in _DEFAULTS[said["class"]].items()}
    fields |= given
    fields |= {key: go(one) for key, one in said.get("more", {}).items() if key in known}
    extra = {key: go(one) for key, one in said.get("extra", ())}
    return cls.model_construct(_fields_set=set(given) | set(extra), **fields, **extra)

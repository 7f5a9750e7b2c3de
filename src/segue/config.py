"""The agent's configuration, pinned to a session by digest, and how two of them differ in words."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from . import codec, phrases
from .errors import Invalid
from .ledger import canonical

_BREAKING = frozenset({"model", "tool-gone-called", "tool-schema-called"})


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """
    What an agent is made of, as far as its history depends on it.

    Args:
        name: The agent's name.
        version: The developer's own version of it; text.
        model: The model's id.
        instructions: The system prompt: text, or the provider's blocks.
        tools: Definitions as they go to the provider, or plain names; in the order in which they are sent.
        extra: Further settings that matter (temperature, reasoning effort), JSON.

    Raises:
        Invalid: Not JSON, or a tool without a name, or two of one name.
    """

    name: str = ""
    version: str = ""
    model: str = ""
    instructions: Any = ""
    tools: Sequence[Any] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("name", "version", "model"):
            if not isinstance(getattr(self, name), str):
                raise Invalid(f"{name} must be a str", where=name)
        tools = [{"name": tool} if isinstance(tool, str) else tool for tool in self.tools]
        kept = codec.decode(codec.encode([self.instructions, tools, dict(self.extra)], where="agent"))
        for name, value in zip(("instructions", "tools", "extra"), kept, strict=True):
            object.__setattr__(self, name, tuple(value) if name == "tools" else value)
        names = [tool_name(tool) for tool in self.tools]
        if len(set(names)) != len(names):
            raise Invalid("two tools have one name", where="tools")

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON from which ``from_json`` gives back an equal configuration."""
        return {
            "name": self.name,
            "version": self.version,
            "model": self.model,
            "instructions": self.instructions,
            "tools": list(self.tools),
            "extra": dict(self.extra),
        }

    @classmethod
    def from_json(cls, value: Any) -> AgentConfig:
        """The configuration of ``to_json`` or ``encode``, or ``Invalid``; unknown keys are passed over."""
        if isinstance(value, bytes):
            value = codec.decode(value)
        if not isinstance(value, Mapping):
            raise Invalid("an agent's configuration is an object", where="agent")
        known = ("name", "version", "model", "instructions", "tools", "extra")
        return cls(**{name: value[name] for name in known if name in value})

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON: equal configurations have equal digests, on every machine."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Canonical JSON bytes, for the session's row."""
        return canonical(self.to_json()).encode()


class Change(NamedTuple):
    """
    One difference between two configurations.

    ``what``: name, version, model, instructions, tool-gone, tool-new, tool-schema, tool-text, tool-order,
    extra; with ``-called`` when the history calls that tool. ``name`` is the tool's or setting's.
    """

    what: str
    name: str = ""
    old: str = ""
    new: str = ""
    detail: str = ""

    @property
    def is_breaking(self) -> bool:
        """True when the history cannot simply go on: another model, or a tool it calls is gone or different."""
        return self.what in _BREAKING

    def text(self, language: str = "en") -> str:
        """The difference in words."""
        parts = {name: phrases.clean(getattr(self, name), 120) for name in ("name", "old", "new", "detail")}
        return phrases.phrases(language).changes[self.what].format(**parts)


def compare(old: AgentConfig, new: AgentConfig, *, called: Collection[str] = ()) -> tuple[Change, ...]:
    """
    What differs, the gravest first.

    Args:
        old: The configuration pinned to the session.
        new: The one it is resumed with.
        called: Names of the tools that the history calls.
    """
    found = [Change(what, old=a, new=b) for what, a, b in _fields(old, new) if a != b]
    if old.instructions != new.instructions:
        found.append(Change("instructions", old=_length(old.instructions), new=_length(new.instructions)))
    found += _tool_changes(_by_name(old.tools), _by_name(new.tools), frozenset(called))
    for name in sorted(old.extra.keys() | new.extra.keys()):
        a, b = old.extra.get(name), new.extra.get(name)
        if a != b:
            found.append(Change("extra", name, canonical(a), canonical(b)))
    return tuple(sorted(found, key=lambda change: not change.is_breaking))


def differences(
    old: AgentConfig, new: AgentConfig, *, called: Collection[str] = (), language: str = "en"
) -> tuple[str, ...]:
    """What differs between two configurations, in words, one sentence each, the gravest first."""
    return tuple(change.text(language) for change in compare(old, new, called=called))


def tool_name(tool: Any) -> str:
    """
    The name in a tool's definition, as Anthropic, OpenAI (both interfaces) or MCP write it.

    Raises:
        Invalid: It has neither a name nor a type.
    """
    if isinstance(tool, Mapping):
        function = tool.get("function")
        for place, key in ((tool, "name"), (function, "name"), (tool, "server_label"), (tool, "type")):
            if isinstance(place, Mapping) and isinstance(place.get(key), str) and place[key]:
                return str(place[key])
    raise Invalid(f"a tool needs a name: {phrases.clean(tool, 60)}", where="tools")


def _fields(old: AgentConfig, new: AgentConfig) -> Iterable[tuple[str, str, str]]:
    return ((what, getattr(old, what), getattr(new, what)) for what in ("model", "name", "version"))


def _length(instructions: Any) -> str:
    return f"{len(instructions if isinstance(instructions, str) else canonical(instructions)):,}"


def _by_name(tools: Sequence[Any]) -> dict[str, Any]:
    return {tool_name(tool): tool for tool in tools}


def _tool_changes(old: dict[str, Any], new: dict[str, Any], called: frozenset[str]) -> list[Change]:
    found: list[Change] = []
    for name, tool in old.items():
        mark = "-called" if name in called else ""
        if name not in new:
            found.append(Change(f"tool-gone{mark}", name))
        elif _schema(tool) != _schema(new[name]):
            found.append(Change(f"tool-schema{mark}", name, detail=_schema_detail(_schema(tool), _schema(new[name]))))
        elif tool != new[name]:
            found.append(Change("tool-text", name))
    found += [Change("tool-new", name) for name in new if name not in old]
    if not found and list(old) != list(new):
        found.append(Change("tool-order"))
    return found


def _schema(tool: Mapping[str, Any]) -> Any:
    """What a tool takes, without the descriptions in it."""
    function = tool.get("function")
    inside = function if isinstance(function, Mapping) else tool
    return _bare(next((inside[key] for key in ("input_schema", "parameters", "inputSchema") if key in inside), None))


def _bare(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {
            key: {name: _bare(v) for name, v in value.items()}
            if key == "properties" and isinstance(value, Mapping)
            else _bare(value)
            for key, value in schema.items()
            if key not in ("description", "title")
        }
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _schema_detail(old: Any, new: Any) -> str:
    """``+region, -shop, ~date``: arguments added, dropped, changed."""
    a, b = _properties(old), _properties(new)
    parts = [f"+{name}" for name in b if name not in a] + [f"-{name}" for name in a if name not in b]
    parts += [f"~{name}" for name in a if name in b and a[name] != b[name]]
    return ", ".join(parts[:8]) or "~"


def _properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}

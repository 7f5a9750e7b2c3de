"""
Values of a graph as JSON, exactly, and back: data only.

What JSON cannot say is an object with the key ``$`` that names a form of this fixed table. Reading
looks a form up and builds plain data, LangChain's messages, LangGraph's own records, or a class that
the program has registered. Nothing stored is ever imported, called or executed (guarantee G12); a name
that nobody registered becomes ``Unknown``, keeps its data and is reported.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import logging
import math
import pathlib
import sys
import uuid
import zoneinfo
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.types import Command, Interrupt, Overwrite, Send
from pydantic import BaseModel, SecretBytes, SecretStr

from segue.errors import Corrupt, Invalid

from . import messages

logger = logging.getLogger(__name__)

MARK = "$"
"""The key of an object that says what JSON cannot."""

DEPTH_MAX = 100
"""Deepest nesting of a value: what is deeper is refused before anything is written."""

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_encode = msgspec.json.encode
_decode = msgspec.json.decode
_PLAIN = frozenset({int, bool, type(None)})


@dataclasses.dataclass(frozen=True)
class Unknown:
    """
    A stored value whose class nobody registered: its name, and its fields as plain data.

    Give the class to ``SegueSaver(types=[...])`` to have it back. Stored again, it stays what it was.
    """

    name: str
    data: Any


class Codec:
    """
    Turns values into JSON and back, with a registry of the program's own classes.

    Args:
        types: Classes that may be made from stored data: pydantic models, dataclasses, named tuples, enums.
            They are made from their fields, without running validators or ``__init__``.

    Attributes:
        unknown: Names met in stored data that nobody registered.
    """

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._types: dict[str, type] = {}
        self._told: set[str] = set()
        self.unknown: set[str] = set()
        for one in types:
            self.register(one)

    def register(self, cls: type, *, name: str | None = None) -> None:
        """Let a class be made from stored data; ``name`` under which it was stored, where it was renamed."""
        if not isinstance(cls, type) or not _shape(cls):
            raise Invalid(
                f"{cls!r} is no pydantic model, dataclass, named tuple or enum; store its fields instead", where="types"
            )
        self._types[name or name_of(cls)] = cls

    # Out

    def encode(self, value: Any) -> bytes:
        """
        JSON of a value.

        Raises:
            Invalid: The value cannot be given back as it is.
        """
        try:
            return _encode(self.tree(value))
        except UnicodeEncodeError:
            return _encode(_Careful(self).tree(value))
        except (RecursionError, msgspec.MsgspecError, TypeError, OverflowError) as error:
            raise Invalid(f"the value cannot be stored: {error}", where="value") from error

    def safe(self, value: Any) -> Any:
        """The value as JSON can say it, whatever strings are in it: what ``encode`` writes, read as JSON."""
        return _decode(self.encode(value))

    def tree(self, value: Any, depth: int = 0) -> Any:
        """The value as what JSON can say, if all its strings are well-formed."""
        kind = type(value)
        if kind is str or value is None or kind is bool:
            return value
        if kind is int:
            return value if _INT_MIN <= value <= _INT_MAX else {MARK: "int", "v": str(value)}
        if kind is float:
            return value if math.isfinite(value) else {MARK: "float", "v": repr(value)}
        if depth > DEPTH_MAX:
            raise Invalid(f"the value is nested deeper than {DEPTH_MAX}; flatten it", where="value")
        if kind is list:
            return [self.tree(one, depth + 1) for one in value]
        if kind is dict:
            return self._mapping(value, depth + 1)
        if isinstance(value, BaseMessage):
            return messages.tree(value, lambda one: self.tree(one, depth + 1)) or self._object(value, depth + 1)
        form = _FORMS_OUT.get(kind)
        if form is not None:
            return {MARK: form[0], "v": form[1](value, lambda one: self.tree(one, depth + 1))}
        return self._other(value, depth + 1)

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        for key in value:
            if type(key) is not str or key == MARK:
                return {
                    MARK: "map",
                    "v": [[self.tree(key, depth), self.tree(one, depth)] for key, one in value.items()],
                }
        return {key: self.tree(one, depth) for key, one in value.items()}

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, BaseException):
            return repr(value)  # as LangGraph's own serialiser does: for people, not to be raised again
        if isinstance(value, Unknown):
            return {MARK: "object", "name": value.name, "v": self.tree(value.data, depth)}
        if isinstance(value, (SecretStr, SecretBytes)):
            raise Invalid("a secret is not stored in a checkpoint; keep it outside of the state", where="value")
        if isinstance(value, pathlib.PurePath):
            return {MARK: "path", "v": str(value)}
        numbers = _numpy(value)
        if numbers is not None:
            return numbers
        if _shape(type(value)):
            return self._object(value, depth)
        plain = next((base for base in (str, int, float, bytes, dict, list, tuple) if isinstance(value, base)), None)
        if plain in (str, int, float, dict):  # a subclass that adds behaviour, not data
            return self.tree(plain(value), depth)
        raise Invalid(
            f"a {name_of(type(value))} cannot be stored in a checkpoint; keep plain data, a dataclass or a pydantic "
            "model in the state",
            where="value",
        )

    def _object(self, value: Any, depth: int) -> Any:
        kind = type(value)
        name = name_of(kind)
        if name not in self._types and name not in self._told:
            self._told.add(name)
            logger.warning("%s is stored as data; to read it back as such, give it to SegueSaver(types=[...])", name)
        fields = _fields(value)
        return {MARK: "object", "name": name, "v": self.tree(fields, depth)}

    # Back

    def decode(self, data: bytes) -> Any:
        """
        The value of stored JSON.

        Raises:
            Corrupt: It is not what ``encode`` writes.
        """
        try:
            return self.value(_decode(data))
        except Corrupt:
            raise
        except Exception as error:
            raise Corrupt(f"a stored value cannot be read: {type(error).__name__}: {error}") from error

    def value(self, tree: Any) -> Any:
        """The value of what JSON said."""
        kind = type(tree)
        if kind is list:
            return [self.value(one) for one in tree]
        if kind is not dict:
            return tree
        form = tree.get(MARK)
        if form is None:
            return {key: self.value(one) for key, one in tree.items()}
        if form == "object":
            return self._made(tree)
        if form == "message":
            return messages.value(tree, self.value)
        back = _FORMS_BACK.get(form) if type(form) is str else None
        if back is None:
            raise Corrupt(f"a stored value has the unknown form {form!r}; was it written by a newer Segue?")
        return back(tree["v"], self.value)

    def _made(self, tree: dict[str, Any]) -> Any:
        name, fields = tree["name"], self.value(tree["v"])
        if type(name) is not str:
            raise Corrupt("a stored object has no name")
        cls = self._types.get(name)
        if cls is None:
            if name not in self.unknown:
                self.unknown.add(name)
                logger.warning("stored data holds %s, which is not registered: it is given back as Unknown", name)
            return Unknown(name, fields)
        return _make(cls, fields)


class _Careful(Codec):
    """The same for values with lone surrogates in them."""

    def __init__(self, like: Codec) -> None:
        self._types, self._told, self.unknown = like._types, like._told, like.unknown  # noqa: SLF001

    def tree(self, value: Any, depth: int = 0) -> Any:
        if type(value) is str:
            return _string(value)
        return super().tree(value, depth)

    def _mapping(self, value: dict[Any, Any], depth: int) -> Any:
        if all(type(key) is str and _string(key) is key and key != MARK for key in value):
            return {key: self.tree(one, depth) for key, one in value.items()}
        return {MARK: "map", "v": [[self.tree(key, depth), self.tree(one, depth)] for key, one in value.items()]}


def _string(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        return {MARK: "str", "v": _b64(value.encode("utf-16-le", "surrogatepass"))}
    return value


def name_of(cls: type) -> str:
    """The name under which a class is stored. It is never looked up but in the registry."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _shape(cls: type) -> str:
    """How a class is taken apart, or an empty string."""
    if issubclass(cls, enum.Enum):
        return "enum"
    if issubclass(cls, BaseModel):
        return "pydantic"
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return "tuple"
    return ""


def _fields(value: Any) -> Any:
    shape = _shape(type(value))
    if shape == "enum":
        return value.name
    if shape == "pydantic":
        return {**value.__dict__, **(value.__pydantic_extra__ or {})}
    if shape == "tuple":
        return value._asdict()
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def _make(cls: type, fields: Any) -> Any:
    """An object of a registered class, from its fields; a field that it does not know any more is left out."""
    shape = _shape(cls)
    if shape == "enum":
        return cls.__members__[fields]  # type: ignore[attr-defined]
    if not isinstance(fields, dict):
        raise Corrupt(f"the fields of a stored {cls.__name__} are no object")
    if shape == "pydantic":
        return cls.model_construct(**fields)  # type: ignore[attr-defined]
    if shape == "tuple":
        return cls._make(fields.get(name) for name in cls._fields)  # type: ignore[attr-defined]
    made: Any = object.__new__(cls)
    for field in dataclasses.fields(cls):
        if field.name in fields:
            object.__setattr__(made, field.name, fields[field.name])
        elif field.default is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default)
        elif field.default_factory is not dataclasses.MISSING:
            object.__setattr__(made, field.name, field.default_factory())
    return made


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unb64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def scalar(value: Any) -> Any:
    """A numpy scalar as the number it is, any other value as it is: metadata is compared with plain numbers."""
    return value.item() if type(value).__module__ == "numpy" and not getattr(value, "shape", ()) else value


def _numpy(value: Any) -> Any:
    """The form of a numpy array or scalar of plain numbers, or None."""
    kind = type(value)
    if kind.__module__.partition(".")[0] != "numpy" or not hasattr(value, "dtype"):
        return None
    if str(value.dtype) not in _DTYPES:
        raise Invalid(f"a numpy value of type {value.dtype} cannot be stored; use one of numbers", where="value")
    if not getattr(value, "shape", ()):
        return {MARK: "number", "v": [str(value.dtype), _b64(value.tobytes())]}
    return {MARK: "array", "v": [str(value.dtype), list(value.shape), _b64(value.tobytes())]}


_DTYPES = frozenset(
    [
        "bool",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
        "float16",
        "float32",
        "float64",
    ]
)


def _array(tree: Any) -> Any:
    np = sys.modules.get("numpy")  # a program that works with arrays has it; what is stored imports nothing
    if np is None:
        return Unknown("numpy", tree)
    dtype, *shape, data = tree
    if dtype not in _DTYPES:
        raise Corrupt(f"a stored array has the type {dtype!r}")
    found = np.frombuffer(_unb64(data), dtype=dtype)
    return found.reshape(shape[0]).copy() if shape else found[0]


Out = Callable[[Any, Callable[[Any], Any]], Any]


def _moment(value: dt.datetime, _: Any) -> Any:
    zone = value.tzinfo.key if isinstance(value.tzinfo, zoneinfo.ZoneInfo) else None
    return [value.isoformat(), value.fold, zone]


def _moment_back(tree: Any, _: Any) -> dt.datetime:
    text, fold, zone = tree
    found = dt.datetime.fromisoformat(text)
    if zone in _zones():
        found = found.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    elif zone is not None:
        logger.warning("the time zone %r is not known here; a stored time is given back with its offset", zone)
    return found.replace(fold=fold)


@functools.cache
def _zones() -> frozenset[str]:
    """The zones of this machine: only these are looked up, never a stored name."""
    return frozenset(zoneinfo.available_timezones())


def _list(value: Iterable[Any], go: Callable[[Any], Any]) -> list[Any]:
    return [go(one) for one in value]


def _set(value: Iterable[Any], go: Callable[[Any], Any]) -> list[Any]:
    return sorted((go(one) for one in value), key=_encode)  # the same set is the same bytes


def _send(value: Send, go: Callable[[Any], Any]) -> Any:
    return [value.node, go(value.arg), go(getattr(value, "timeout", None))]


def _send_back(tree: Any, go: Callable[[Any], Any]) -> Send:
    node, arg, timeout = tree
    return Send(node, go(arg)) if timeout is None else Send(node, go(arg), timeout=go(timeout))


def _interrupt(value: Interrupt, go: Callable[[Any], Any]) -> Any:
    schema = getattr(value, "response_schema", None)
    return [go(value.value), value.id, go(schema) if isinstance(schema, dict) else None]


def _interrupt_back(tree: Any, go: Callable[[Any], Any]) -> Interrupt:
    value, id, schema = tree
    made = Interrupt(value=go(value), id=id)
    if schema is not None:
        made.response_schema = go(schema)
    return made


_COMMAND = ("graph", "update", "resume", "goto")


def _command(value: Command[Any], go: Callable[[Any], Any]) -> Any:
    return {name: go(getattr(value, name)) for name in _COMMAND}


def _command_back(tree: Any, go: Callable[[Any], Any]) -> Command[Any]:
    return Command(**{name: go(tree[name]) for name in _COMMAND})


def _document(value: Document, go: Callable[[Any], Any]) -> Any:
    return [value.id, value.page_content, go(value.metadata)]


def _document_back(tree: Any, go: Callable[[Any], Any]) -> Document:
    id, text, metadata = tree
    return Document.model_construct(id=id, page_content=text, metadata=go(metadata), type="Document")


def _record(cls: type) -> tuple[type, Out, Out]:
    """The form of a dataclass of LangGraph's own."""
    return cls, lambda value, go: go(_fields(value)), lambda tree, go: _make(cls, go(tree))


def _timeout_types() -> Mapping[str, type]:
    from langgraph import types

    return {"timeout": types.TimeoutPolicy} if hasattr(types, "TimeoutPolicy") else {}


_FORMS: dict[str, tuple[type, Out, Out]] = {
    "tuple": (tuple, _list, lambda tree, go: tuple(go(one) for one in tree)),
    "set": (set, _set, lambda tree, go: {go(one) for one in tree}),
    "frozenset": (frozenset, _set, lambda tree, go: frozenset(go(one) for one in tree)),
    "deque": (
        deque,
        lambda value, go: [value.maxlen, _list(value, go)],
        lambda tree, go: deque((go(one) for one in tree[1]), tree[0]),
    ),
    "bytes": (bytes, lambda value, _: _b64(value), lambda tree, _: _unb64(tree)),
    "bytearray": (bytearray, lambda value, _: _b64(bytes(value)), lambda tree, _: bytearray(_unb64(tree))),
    "complex": (complex, lambda value, go: [go(value.real), go(value.imag)], lambda t, go: complex(go(t[0]), go(t[1]))),
    "datetime": (dt.datetime, _moment, _moment_back),
    "date": (dt.date, lambda value, _: value.isoformat(), lambda tree, _: dt.date.fromisoformat(tree)),
    "time": (dt.time, lambda value, _: value.isoformat(), lambda tree, _: dt.time.fromisoformat(tree)),
    "timedelta": (
        dt.timedelta,
        lambda value, _: [value.days, value.seconds, value.microseconds],
        lambda tree, _: dt.timedelta(*tree),
    ),
    "uuid": (uuid.UUID, lambda value, _: str(value), lambda tree, _: uuid.UUID(tree)),
    "decimal": (decimal.Decimal, lambda value, _: str(value), lambda tree, _: decimal.Decimal(tree)),
    "send": (Send, _send, _send_back),
    "interrupt": (Interrupt, _interrupt, _interrupt_back),
    "command": (Command, _command, _command_back),
    "overwrite": (Overwrite, lambda value, go: go(value.value), lambda tree, go: Overwrite(go(tree))),
    "snapshot": (_DeltaSnapshot, lambda value, go: go(value.value), lambda tree, go: _DeltaSnapshot(go(tree))),
    "document": (Document, _document, _document_back),
    **{name: _record(cls) for name, cls in _timeout_types().items()},
}
"""Form → class, how it is said, how it is read back."""

_FORMS_OUT: dict[type, tuple[str, Out]] = {cls: (form, out) for form, (cls, out, _) in _FORMS.items()}
_FORMS_BACK: dict[str, Out] = {
    **{form: back for form, (_, _, back) in _FORMS.items()},
    "map": lambda tree, go: {go(key): go(one) for key, one in tree},
    "int": lambda tree, _: int(tree),
    "float": lambda tree, _: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[tree],
    "str": lambda tree, _: _unb64(tree).decode("utf-16-le", "surrogatepass"),
    "path": lambda tree, _: pathlib.Path(tree),
    "number": lambda tree, _: _array(tree),
    "array": lambda tree, _: _array(tree),
}

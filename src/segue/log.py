"""One session's log as its scope sees it: entries in, entries out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from . import answers, codec, formats
from .engine import Engine
from .errors import Invalid, OutcomeUnknown
from .model import (
    ORIGINS,
    Draft,
    Entry,
    Hit,
    ScopeKey,
    SessionInfo,
    Usage,
    check_name,
    check_names,
    check_type,
    check_us,
    from_us,
    new_id,
    to_us,
)
from .store import BATCH_MAX, READ_MAX, Append, Appended

BATCH_MAX_BYTES = 32 * 1024 * 1024
"""Most bytes of all bodies of one append."""


COUNT_MAX = 1 << 40
"""Most tokens of one kind in an entry's usage: so few that every store can hold the sum of many."""

FOLLOW_PAGE = 500
"""Most entries a follower reads at a time."""


class Checked(Draft):
    """(inner) A draft that was looked at. What is made of it by ``_replace`` is not."""

    __slots__ = ()

    def _replace(self, **changes: Any) -> Draft:  # type: ignore[override]
        return Draft(*self)._replace(**changes)


def draft(
    value: Any,
    *,
    kind: str = "message",
    format: str = "anthropic",
    origin: str | None = None,
    id: str | None = None,
    refs: Sequence[str] = (),
    occurred_at: datetime | None = None,
    usage: Usage | None = None,
) -> Draft:
    """
    Make an entry that is ready to be appended, checked at the door.

    Args:
        value: A JSON value, encoded once with its key order; or bytes, which must be JSON (or, with
            format ``raw``, anything) and are kept as they are. At most 4 MiB.
        kind: One of ``segue.model.KINDS``, or an adapter's own word.
        format: Whose JSON it is.
        origin: user, model, tool, system or import; None takes it from a message's role.
        id: Unique within the session; the same id with the same content is stored once. None: a new one.
        refs: Keys under which ``by_ref`` finds the entry. A message's calls add ``call:<id>`` by themselves.
        occurred_at: A claimed time, for imports and replays.
        usage: Tokens of the model call that made it.

    Raises:
        Invalid: The value could not be given back as it is, or breaks a limit; nothing was written.

    Guarantees: G4 exact, G12 never code.
    """
    if isinstance(value, Draft):
        return _checked(value)
    if not isinstance(refs, tuple | list):
        refs = check_names(refs, "refs")
    if type(format) is not str:
        check_type(format, str, "format")
    body = _body(value, format)
    if kind == "message" and format != "raw":
        rules = formats.rules(format)
        if rules is not None:
            message = codec.decode(body) if isinstance(value, bytes) else value
            if not isinstance(message, dict):
                raise Invalid(
                    f"a message of format {format!r} is an object, not a {type(message).__name__}; "
                    "append several messages as several arguments",
                    where="body",
                )
            shape = rules.shape(message)
            if shape is None:
                _check_role(message, format)
            else:
                refs = (*refs, *shape.refs)
            origin = origin or _origin(shape, message)
    if occurred_at is not None and not isinstance(occurred_at, datetime):
        raise Invalid("occurred_at must be an aware datetime, or None", where="occurred_at")
    _check_usage(usage)
    origin = _check_origin(origin or "system")
    return Checked(
        kind if kind == "message" else check_name(kind, "kind"),
        check_name(format, "format"),
        origin,
        body,
        codec.digest(body),
        new_id() if id is None else check_name(id, "id"),
        tuple(dict.fromkeys(check_name(ref, "ref") for ref in refs)) if refs else (),
        None if occurred_at is None else to_us(occurred_at),
        usage,
    )


def _checked(made: Draft) -> Draft:
    """A draft that somebody made, looked at as closely as what ``draft`` makes."""
    if type(made) is Checked:
        return made
    body = _body(check_type(made.body, bytes, "body"), check_name(made.format, "format"))
    if made.digest != codec.digest(body):
        raise Invalid("the digest of a Draft is segue.codec.digest(body), and this one is not", where="digest")
    _check_usage(made.usage)
    return Checked(
        check_name(made.kind, "kind"),
        made.format,
        _check_origin(made.origin),
        body,
        made.digest,
        check_name(made.id, "id"),
        tuple(dict.fromkeys(check_names(made.refs, "refs"))),
        None if made.occurred_us is None else check_us(made.occurred_us, "occurred_us"),
        made.usage,
    )


def _check_origin(origin: object) -> str:
    if not isinstance(origin, str) or origin not in ORIGINS:
        raise Invalid(f"origin {origin!r} is none of {', '.join(sorted(ORIGINS))}", where="origin")
    return origin


def _origin(shape: formats.Shape | None, message: dict[str, Any]) -> str:
    """Who a message comes from, by its role and what it holds."""
    if shape is None:
        return "system"
    if shape.answers:
        return "tool"
    role = str(message.get("role", "assistant" if shape.side == "model" else ""))
    return {"user": "user", "assistant": "model"}.get(role, "system")


def _check_role(message: dict[str, Any], format: str) -> None:
    """Refuse content of which nothing says whose it is. What is of another shape is kept, and no view shows it."""
    if "content" not in message or "role" in message or (format == "openai.responses" and "type" in message):
        return
    raise Invalid(
        f"a message of format {format!r} says in 'role' whose it is, such as 'user'; this one has "
        f"{', '.join(map(repr, list(message)[:5]))}. What is no message is appended with kind=…",
        where="role",
    )


def _check_usage(usage: object) -> None:
    """Refuse here what a store would stumble over in the middle of everybody's commit."""
    if usage is None:
        return
    if not isinstance(usage, Usage) or not all(map(_is_count, usage)):
        raise Invalid(f"usage must be a segue.Usage of numbers from 0 to {COUNT_MAX:,}, or None", where="usage")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX


def _body(value: Any, format: str) -> bytes:
    if not isinstance(value, bytes):
        if format == "raw":
            raise Invalid("a body of format 'raw' must be bytes", where="body")
        return codec.encode(value)
    if format == "raw":
        codec.check_raw(value)
    else:
        codec.check(value)
    return value


def drafts(items: Sequence[Any], ids: Sequence[str] | None, **options: Any) -> tuple[Draft, ...]:
    """One draft an item, or ``Invalid`` naming the item; none is made when one is refused."""
    if not items:
        raise Invalid("append takes at least one entry", where="items")
    if "id" in options and len(items) > 1:
        raise Invalid("id names one entry; give ids=[…], one an entry", where="id")
    if len(items) > BATCH_MAX:
        raise Invalid(f"append takes 1 to {BATCH_MAX:,} entries, not {len(items):,}; split the batch", where="items")
    if ids is not None and not isinstance(ids, tuple | list):
        ids = check_names(ids, "ids")
    if ids is not None and len(ids) != len(items):
        raise Invalid(f"{len(items)} entries but {len(ids)} ids; give one id an entry", where="ids")
    made = tuple(_made(items, ids, options))
    size = sum(len(one.body) for one in made)
    if size > BATCH_MAX_BYTES:
        raise Invalid(f"the batch has {size:,} bytes, the limit is {BATCH_MAX_BYTES:,}; split it", where="items")
    if len(made) > 1 and len({one.id for one in made}) < len(made):
        raise Invalid("two entries of the batch have the same id", where="ids")
    return made


def _made(items: Sequence[Any], ids: Sequence[str] | None, options: dict[str, Any]) -> Iterator[Draft]:
    for n, item in enumerate(items):
        if isinstance(item, Draft):
            made = _checked(item)
            yield made if ids is None else Checked(*made._replace(id=check_name(ids[n], "id")))
            continue
        for part, (message, usage) in enumerate(answers.unwrap(item)):
            own = dict(options)
            if usage is not None:
                own.setdefault("usage", usage)
            if ids is not None:
                own["id"] = ids[n] if part == 0 else f"{ids[n]}.{part}"
            yield draft(message, **own)


class Log(NamedTuple):
    """Engine, owner and id: what is needed to reach one session's entries."""

    engine: Engine
    scope: ScopeKey
    id: str

    def info(self) -> SessionInfo:
        """The session's row now."""
        return self.engine.store.get(self.scope, self.id)

    def last_said(self, info: SessionInfo, kinds: tuple[str, ...] = ("message", "note")) -> datetime:
        """When the conversation last went on: a fork is as old as what it shares, an import as old as it says."""
        for these in (kinds, None):
            for entry in self.read(kinds=these, upto=info.head, reverse=True, limit=1):
                claimed_us = entry.created_us if entry.occurred_us is None else entry.occurred_us
                return from_us(min(entry.created_us, claimed_us))
        return info.active_at

    def append(
        self,
        entries: tuple[Draft, ...],
        *,
        run: str | None = None,
        fence: int | None = None,
        expect: int | None = None,
    ) -> Appended:
        """Append once: a commit of unknown outcome is asked again with the same ids, which stores nothing twice."""
        op = self.append_op(entries, run=run, fence=fence, expect=expect)
        try:
            return self.engine.do(op)  # type: ignore[no-any-return]
        except OutcomeUnknown:
            return self.engine.do(op)  # type: ignore[no-any-return]

    def append_op(
        self,
        entries: tuple[Draft, ...],
        *,
        run: str | None = None,
        fence: int | None = None,
        expect: int | None = None,
    ) -> Append:
        """The operation of an append, for callers that hand it to the engine themselves."""
        return Append(self.scope, self.id, entries, run, fence, expect)

    def read(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[str] | None = None,
        reverse: bool = False,
        limit: int | None = None,
    ) -> list[Entry]:
        """Entries with after < seq <= upto, at most ``limit`` (None: all of them)."""
        if limit is not None and limit <= READ_MAX:
            return self._page(after, upto, kinds, limit, reverse=reverse)
        found: list[Entry] = []
        for entry in self.iterate(after=after, upto=upto, kinds=kinds, reverse=reverse):
            if limit is not None and len(found) >= limit:
                break
            found.append(entry)
        return found

    def iterate(
        self,
        *,
        after: int = 0,
        upto: int | None = None,
        kinds: Sequence[str] | None = None,
        reverse: bool = False,
        page: int = READ_MAX,
    ) -> Iterator[Entry]:
        """The same, a page at a time, up to the head of the moment of the call."""
        if upto is None:
            upto = self.info().head
        while after < upto:
            entries = self._page(after, upto, kinds, page, reverse=reverse)
            yield from entries
            if len(entries) < page:
                return
            if reverse:
                upto = entries[-1].seq - 1
            else:
                after = entries[-1].seq

    def next_after(self, after: int) -> list[Entry]:
        """Entries behind ``after``, at most a page of them; none when there are none yet."""
        return self._page(after, None, None, FOLLOW_PAGE, reverse=False)

    def _page(
        self, after: int, upto: int | None, kinds: Sequence[str] | None, limit: int, *, reverse: bool
    ) -> list[Entry]:
        return self.engine.store.read(
            self.scope,
            self.id,
            after=after,
            upto=upto,
            kinds=None if kinds is None else tuple(kinds),
            reverse=reverse,
            limit=limit,
        )

    def by_ref(
        self, ref: str, *, after: int = 0, upto: int | None = None, reverse: bool = False, limit: int = READ_MAX
    ) -> list[Hit]:
        """Entries of this session that carry the ref, by seq."""
        return self.engine.store.by_ref(
            self.scope, ref, session=self.id, after=after, upto=upto, reverse=reverse, limit=limit
        )

    def last(self, ref: str, *, upto: int | None = None) -> Entry | None:
        """The newest entry that carries the ref, or None."""
        hits = self.by_ref(ref, upto=upto, reverse=True, limit=1)
        return hits[0].entry if hits else None

"""Readings: rows, logs, entries by ref, pages of a list."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from segue.errors import Corrupt, NotFound
from segue.model import Entry, Hit, ScopeKey, SessionInfo
from segue.store import LIST_MAX, Filter, Page

from . import _listing
from ._redis_commit import TURNS_MAX, script
from ._redis_errors import judge, translate
from ._redis_keys import Keys, Lineage, Spans
from ._redis_link import Link
from ._redis_wire import Reply, pack, unpack_entry, unpack_session
from ._redis_wires import Command

T = TypeVar("T")

ENDLESS = 1 << 53
"""A seq behind every entry; the scripts' numbers are exact up to here."""

SCRIPT_MAX = 32
"""Most entries that come through a script; more are asked for directly, which needs no copy on the server."""

LOOK_MAX = 500
"""Most entries that one call of a script looks at, or one command gives."""

FEW = 1_000
"""Up to this many sessions with a tag, parent, key or lease are all looked at; else the list is, in its order."""


class Span(NamedTuple):
    """What a reading asks for."""

    after: int
    upto: int
    reverse: bool
    limit: int


class Reader:
    """
    Reads through a link.

    Args:
        keys: Names of the keys.
        lineage: What forks share.
    """

    def __init__(self, link: Link, keys: Keys, lineage: Lineage) -> None:
        self.link = link
        self._keys = keys
        self._lineage = lineage
        self._script = script("read")

    # Rows.

    def rows(self, scope: ScopeKey, sessions: Sequence[str], shift_us: int) -> list[SessionInfo | None]:
        """Rows as of now; None for a session that is not there."""
        keys = [self._keys.of_session(scope, session)[0] for session in sessions]
        if not keys:
            return []
        now_us, *rows = self._call(keys, ["rows", shift_us])
        return [
            None if row is None else unpack_session(scope, session, row, int(now_us))
            for session, row in zip(sessions, rows, strict=True)
        ]

    def find(self, scope: ScopeKey, key: str, shift_us: int) -> SessionInfo | None:
        """The session with a key."""
        for _ in range(TURNS_MAX):  # the key may change hands between the two looks
            name = self._keys.named(scope, "names")
            session = self.ask(Command(name, (b"HGET", name, key)))
            if session is None:
                return None
            (info,) = self.rows(scope, [session.decode()], shift_us)
            if info is not None and info.key == key:
                return info
        return None

    # Logs.

    def log(self, scope: ScopeKey, session: str, span: Span, kinds: tuple[str, ...] | None) -> list[Entry]:
        """The entries of a span, of some kinds or all."""
        if kinds is None and min(span.limit, span.upto - span.after) > SCRIPT_MAX:
            return self._stream(scope, session, span)
        if kinds is None:
            args = ["log", 0, span.after, span.upto, int(span.reverse), span.limit, 0, b""]
            _, upto, *records = self._of_history(scope, session, args)
            seqs = itertools.count(int(upto), -1) if span.reverse else itertools.count(span.after + 1)
            return [unpack_entry(seq, record, session) for seq, record in zip(seqs, records, strict=False)]
        entries: list[Entry] = []
        while True:
            after, upto, reverse, limit = span
            args = ["log", 0, after, upto, int(reverse), limit - len(entries), LOOK_MAX, pack(kinds)]
            _, goes_on, *found = self._of_history(scope, session, args)
            entries += [unpack_entry(int(seq), record, session) for seq, record in _twos(found)]
            if not goes_on:
                return entries
            span = span._replace(upto=int(goes_on) - 1) if reverse else span._replace(after=int(goes_on))

    def _stream(self, scope: ScopeKey, session: str, span: Span) -> list[Entry]:
        """Many entries, straight from where they lie."""
        for is_last in (False, True):
            head, parts = self._parts(scope, session)
            upto = min(span.upto, head)
            count = max(0, min(span.limit, upto - span.after))
            seqs = range(upto, upto - count, -1) if span.reverse else range(span.after + 1, span.after + 1 + count)
            commands = [
                Command(key, (b"HMGET", key, *map(str, piece)))
                for key, mine in _by_part(seqs, parts, reverse=span.reverse)
                for piece in _pieces(mine)
            ]
            records = [record for found in self.ask_all(commands) for record in found]
            # What is missing may have been erased between the two looks.
            if is_last or None not in records:
                break
        return [unpack_entry(seq, record, session) for seq, record in zip(seqs, records, strict=True)]

    def _parts(self, scope: ScopeKey, session: str) -> tuple[int, list[tuple[bytes, int, int]]]:
        """The head, and of which keys the log is made: key of entries, after, upto."""
        row = self._keys.of_session(scope, session)[0]
        gone, base, head, spans = self.ask(Command(row, (b"HMGET", row, "gone", "base", "head", "spans")))
        if gone is not None or head is None:
            raise NotFound(session)
        self._lineage.learn(scope, session, spans)
        own = (session, int(base), int(head))
        parts = [*self._lineage.of(scope, session), own]
        return own[2], [(self._keys.of_session(scope, owner)[1], low, upto) for owner, low, upto in parts]

    def refs_of(self, scope: ScopeKey, session: str, ref: str, span: Span, since_us: int | None) -> list[Hit]:
        """Entries of one log that carry a ref."""
        hits: list[Hit] = []
        while len(hits) < span.limit:
            limit = min(LOOK_MAX, span.limit - len(hits))
            args = ["refs", 0, ref, span.after, span.upto, int(span.reverse), limit, since_us or 0]
            _, is_more, *found = self._of_history(scope, session, args)
            owners = [*(part.owner for part in self._lineage.of(scope, session)), session]
            for seq, part, record in zip(found[::3], found[1::3], found[2::3], strict=True):
                owner = owners[part]
                hits.append(Hit(owner, unpack_entry(int(seq), record, owner)))
            if not found or (not is_more and len(found) < 3 * limit):
                break
            last = hits[-1].entry.seq
            span = span._replace(upto=last - 1) if span.reverse else span._replace(after=last)
        return hits

    def refs_in(self, shards: Sequence[ScopeKey], ref: str, span: Span, since_us: int | None) -> list[Hit]:
        """Entries of all sessions of a scope that carry a ref."""
        if len(shards) == 1:
            return self._refs_in(shards[0], ref, span, since_us)
        hits = [hit for shard in shards for hit in self._refs_in(shard, ref, span, since_us)]
        hits.sort(key=lambda hit: (hit.entry.created_us, hit.session, hit.entry.seq), reverse=span.reverse)
        return hits[: span.limit]

    def _refs_in(self, scope: ScopeKey, ref: str, span: Span, since_us: int | None) -> list[Hit]:
        name, begin = self._keys.named(scope, "refs"), ref.encode() + b"\0"
        low, high = b"[" + begin + b"%016d" % max(0, since_us or 0), b"(" + begin + b"\xff"
        is_all = span.after <= 0 and span.upto >= ENDLESS
        most = span.limit if is_all else -1
        bounds = (b"ZREVRANGEBYLEX", name, high, low) if span.reverse else (b"ZRANGEBYLEX", name, low, high)
        command = Command(name, (*bounds, b"LIMIT", 0, most))
        for is_last in (False, True):
            places = [_place(member[len(begin) :]) for member in self.ask(command)]
            places = [(owner, seq) for owner, seq in places if span.after < seq <= span.upto][: span.limit]
            records = self._records(scope, places)
            if is_last or None not in records:  # as above
                break
        return [
            Hit(owner, unpack_entry(seq, record, owner)) for (owner, seq), record in zip(places, records, strict=True)
        ]

    def _records(self, scope: ScopeKey, places: Sequence[tuple[str, int]]) -> list[Reply]:
        by_owner: dict[str, list[int]] = {}
        for n, (owner, _) in enumerate(places):
            by_owner.setdefault(owner, []).append(n)
        asked: list[Sequence[int]] = []
        commands = []
        for owner, mine in by_owner.items():
            key = self._keys.of_session(scope, owner)[1]
            for piece in _pieces(mine):
                asked.append(piece)
                commands.append(Command(key, (b"HMGET", key, *(str(places[n][1]) for n in piece))))
        records: list[Reply] = [None] * len(places)
        for piece, found in zip(asked, self.ask_all(commands), strict=True):
            for n, record in zip(piece, found, strict=True):
                records[n] = record
        return records

    def _of_history(self, scope: ScopeKey, session: str, args: list[Any]) -> Sequence[Reply]:
        """An answer from a session's own keys and those of its ancestors, once we know which they are."""
        while True:
            spans: Spans = self._lineage.of(scope, session)
            keys = [self._keys.of_session(scope, session)[0]]
            for owner in (*(span.owner for span in spans), session):
                keys += self._keys.of_session(scope, owner)[1:4:2]
            answer: Sequence[Reply] = self._call(keys, args)
            if answer[0] == b"not_found":
                raise NotFound(session)
            if answer[0] != b"need":
                return answer
            self._lineage.learn(scope, session, answer[1])
            if len(self._lineage.of(scope, session)) == len(spans):
                raise Corrupt(
                    f"the row of session {session!r} does not say what it shares; run segue verify", session=session
                )

    # Lists.

    def page(
        self,
        shards: Sequence[ScopeKey],
        scope: ScopeKey,
        filter: Filter,
        *,
        cursor: str | None,
        limit: int,
        shift_us: int,
    ) -> Page:
        """One page of the sessions of a scope, which may be spread over shards."""
        limit = min(limit, LIST_MAX)
        start = None if cursor is None else _listing._read_cursor(cursor, scope, filter)  # noqa: SLF001 - one package
        shown: list[SessionInfo] = []
        for shard in shards:
            # Of each shard the page as if it were alone, and one more session: so no shard ends the page too early.
            shown += self._first(shard, filter, start, limit + 1, shift_us)
        own = [info if info.scope == scope else replace(info, scope=scope) for info in shown]
        return _listing.page_of(own, scope, filter, cursor=cursor, limit=limit)

    def _first(
        self, shard: ScopeKey, filter: Filter, start: tuple[int, str] | None, count: int, shift_us: int
    ) -> list[SessionInfo]:
        """The first sessions behind a place, so many or (where there are no more) fewer, and others besides."""
        seen: dict[str, SessionInfo] = {}
        cursor = None if start is None else _listing._write_cursor(start, shard, filter)  # noqa: SLF001
        for ids in self._candidates(shard, filter, start, count, shift_us):
            seen |= {info.id: info for info in self.rows(shard, ids, shift_us) if info is not None}
            if len(_listing.page_of(seen.values(), shard, filter, cursor=cursor, limit=count).sessions) == count:
                break
        return list(seen.values())

    def _candidates(
        self, scope: ScopeKey, filter: Filter, start: tuple[int, str] | None, limit: int, shift_us: int
    ) -> Iterator[list[str]]:
        """Ids of all sessions that the filter may show behind the start, a bunch at a time, in the list's order."""
        few = self._few(scope, filter, shift_us)
        if few is not None:
            yield few
            return
        reverse = filter.due_us is None and filter.archived_us is None
        if start is None and filter.until_us is not None and reverse:
            start = (filter.until_us + 1, "")
        names = _lists(filter)
        count = limit
        while True:
            place = ("", "") if start is None else start
            args = ["list", 0, int(reverse), *place, count]
            found = self._call([self._keys.named(scope, name) for name in names], args)
            lists = [[(int(float(score)), id.decode()) for id, score in _twos(each)] for each in found]
            # A list that gave all we asked for goes on; behind its last place another list may still have something.
            ends = [each[-1] for each in lists if len(each) == count]
            edge = (max(ends) if reverse else min(ends)) if ends else None
            places = [at for each in lists for at in each if edge is None or (at >= edge if reverse else at <= edge)]
            yield [id for _, id in sorted(places, reverse=reverse)]
            if edge is None or _is_past(edge, filter, reverse=reverse):
                return
            start, count = edge, min(2 * count, LIST_MAX)

    def _few(self, scope: ScopeKey, filter: Filter, shift_us: int) -> list[str] | None:
        """All sessions with the filter's tag, parent, key or lease, when they are few."""
        commands = []
        words = self._keys.named(scope, "words")
        if filter.tag is not None:
            commands.append(_words(words, b"t", filter.tag.encode("utf-8", "surrogatepass")))
        if filter.parent is not None:
            commands.append(_words(words, b"p", filter.parent.encode()))
        if filter.key_prefix is not None:
            commands.append(_between(words, b"k" + filter.key_prefix.encode()))
        if filter.status is not None and set(filter.status) <= {"running", "paused"}:
            leases = self._keys.named(scope, "leases")
            later = (f"({self.now_us(shift_us, leases)}", b"+inf", b"LIMIT", 0, FEW + 1)
            commands.append(Command(leases, (b"ZRANGEBYSCORE", leases, *later)))
        for command, found in zip(commands, self.ask_all(commands), strict=True):
            if len(found) <= FEW:
                return [_id_of(member, command) for member in found]
        return None

    def scopes(self, after: ScopeKey | None, limit: int) -> list[ScopeKey]:
        """Owners of sessions, in byte order."""
        # The shards of a scope stand behind it, before any other: NUL is the lowest byte.
        low = b"-" if after is None else b"(" + "\0".join(after).encode() + b"\0\xff"
        scopes: dict[ScopeKey, None] = {}
        while len(scopes) < limit:
            name = self._keys.scopes
            found = self.ask(Command(name, (b"ZRANGEBYLEX", name, low, b"+", b"LIMIT", 0, LIST_MAX)))
            known = [ScopeKey(*member.decode().split("\0", 1)) for member in found]
            lists = [self._keys.of_scope(scope)[:3] for scope in known]
            counts = self.ask_all([Command(keys[0], (b"EXISTS", *keys)) for keys in lists])
            scopes |= {
                ScopeKey(scope.tenant, scope.user.partition("\0")[0]): None
                for scope, count in zip(known, counts, strict=True)
                if count
            }
            if len(found) < LIST_MAX:
                break
            low = b"(" + found[-1]
        return list(scopes)[:limit]

    def now_us(self, shift_us: int, key: bytes | None = None) -> int:
        """The clock of the server that has the key (None: any)."""
        seconds, us = self.ask(Command(key, (b"TIME",)))
        return int(seconds) * 1_000_000 + int(us) + shift_us

    # Asking.

    def ask(self, command: Command) -> Reply:
        """The answer to a command that only reads."""
        return self.ask_all([command])[0]

    def ask_all(self, commands: Sequence[Command]) -> list[Reply]:
        """The answers to commands that only read."""
        return self._insist(lambda: self.link.run(commands)) if commands else []

    def _call(self, keys: Sequence[bytes], args: Sequence[Any]) -> Any:
        is_new = False

        def ask() -> list[Reply | Exception]:
            nonlocal is_new
            replies = self.link.run([self._script.command(keys, args, is_new=is_new)])
            is_new = any(isinstance(reply, Exception) and judge(reply) == "script" for reply in replies)
            return replies

        return self._insist(ask)[0]

    def _insist(self, ask: Callable[[], list[Reply | Exception]]) -> list[Reply]:
        """Ask again while the server puts it off, or once more after a cut: readings may be repeated."""
        cuts = 0
        for turn in range(TURNS_MAX + 1):
            replies = ask()
            error = next((reply for reply in replies if isinstance(reply, Exception)), None)
            if error is None:
                return replies
            verdict = judge(error)
            cuts += verdict == "cut"
            if verdict in ("no", "unsent") or cuts > 1 or turn == TURNS_MAX:
                raise translate(error, self.link.where) from error
            if verdict != "script":
                self.link.refresh()
            if verdict == "again":
                time.sleep(0.02 * 2**turn)
        raise AssertionError


def _twos(flat: Sequence[Reply]) -> Iterator[tuple[Reply, Reply]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + LOOK_MAX] for first in range(0, len(items), LOOK_MAX))


def _by_part(
    seqs: range, parts: Sequence[tuple[bytes, int, int]], *, reverse: bool
) -> Iterator[tuple[bytes, Sequence[int]]]:
    """Which of the seqs lie under which key, in their order."""
    if not seqs:
        return
    low, high = min(seqs[0], seqs[-1]), max(seqs[0], seqs[-1])
    for key, after, upto in reversed(parts) if reverse else parts:
        mine = range(max(low, after + 1), min(high, upto) + 1)
        if mine:
            yield key, mine[::-1] if reverse else mine


def _place(member: bytes) -> tuple[str, int]:
    """Session and seq of a member of the scope's refs, behind the ref."""
    session, _, seq = member[16:].rpartition(b"\0")
    return session.decode(), int(seq)


def _lists(filter: Filter) -> list[str]:
    if filter.due_us is not None:
        return ["due"]
    if filter.archived_us is not None:
        return ["old"]
    names = ["listed", "unlisted"] if filter.include_unlisted else ["listed"]
    if filter.status is None or set(filter.status) == {"archived"}:
        return names if filter.status is None else ["archived"]
    return [*names, "archived"] if "archived" in filter.status else names


def _is_past(edge: tuple[int, str], filter: Filter, *, reverse: bool) -> bool:
    """True when nothing behind this place can be shown."""
    if reverse:
        return filter.since_us is not None and edge[0] < filter.since_us
    most = filter.due_us if filter.due_us is not None else filter.archived_us
    return most is not None and edge[0] > most


def _words(key: bytes, sort: bytes, word: bytes) -> Command:
    return _between(key, sort + len(word).to_bytes(2, "big") + word)


def _between(key: bytes, begin: bytes) -> Command:
    return Command(key, (b"ZRANGEBYLEX", key, b"[" + begin, b"(" + begin + b"\xff", b"LIMIT", 0, FEW + 1))


def _id_of(member: bytes, command: Command) -> str:
    """The session that a word, or a lease, is of."""
    if command.args[0] != b"ZRANGEBYLEX":
        return member.decode()
    if member[:1] == b"k":
        return member.partition(b"\0")[2].decode()
    return member[3 + int.from_bytes(member[1:3], "big") :].decode()

"""Compaction as cuts: what is replaced stays in the log, what replaces it is read instead."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import segue
from segue.errors import HeadMoved
from segue.model import Draft
from segue.store import BATCH_MAX

from . import history
from .history import Ground, Item
from .progress import settled

if TYPE_CHECKING:
    from .session import SegueSession

REASON = "compacted"
_REFS = (history.COMPACTION,)


class Seen(NamedTuple):
    """What a compaction has read: the ground, the newest items, whether they are all."""

    base: Ground
    items: list[Item]
    is_complete: bool


class Snapshot(NamedTuple):
    """The newest items, whether they are all, and what replaces them from a place on if nothing changed since."""

    items: list[Any]
    complete: bool
    replace_suffix: Callable[[int, list[Any]], Awaitable[bool]]


async def snapshot(session: SegueSession, limit: int, prune_prefix: Callable[[Any], bool] | None) -> Snapshot | None:
    """What a compaction may replace: at most the newest ``limit`` items."""
    stored = await session._find()  # noqa: SLF001 - one adapter
    if stored is None:
        return None
    base, items = await session._hop(history.read, stored.sync, limit + 1)  # noqa: SLF001
    seen = Seen(base, items[-limit:], len(items) <= limit)

    async def replace_suffix(start: int, output: list[Any]) -> bool:
        if not seen.items[start:]:
            return False
        return await settled(_replace(session, seen, start, output=output, prune=prune_prefix))

    return Snapshot([item.value for item in seen.items], seen.is_complete, replace_suffix)


async def replace_all(session: SegueSession, items: list[Any]) -> bool:
    """Replace the whole history, atomically; False when it is not done."""
    stored = await session.stored()
    base = await session._hop(history.ground, stored.sync)  # noqa: SLF001
    return await _write(session, stored, base.head, [history.cut(base.head, REASON, refs=_REFS), *_made(items)])


async def _replace(
    session: SegueSession, seen: Seen, start: int, *, output: list[Any], prune: Callable[[Any], bool] | None
) -> bool:
    stored = await session.stored()
    base, first = seen.base, seen.items[start].seq
    if start == 0 and seen.is_complete:
        marks = [history.cut(base.head, REASON, refs=_REFS)]
    elif first == 0:  # within the summary of an earlier cut
        kept = len(base.summary) - sum(item.seq == 0 for item in seen.items[start:])
        marks = [history.cut(base.head, REASON, summary=base.summary[:kept], refs=_REFS)]
    else:
        marks = [history.retraction_after(first - 1, REASON, refs=_REFS)]
        if prune is not None:
            marks += await session._hop(_pruned, stored.sync, base, before=first, prune=prune)  # noqa: SLF001
    return await _write(session, stored, base.head, [*marks, *_made(output)])


def _pruned(stored: segue.Session, base: Ground, *, before: int, prune: Callable[[Any], bool]) -> list[Draft]:
    """The retraction of the oldest items, as far as the wrapper says that they are no more."""
    gone: list[int] = []
    for item in history.oldest(stored, base, before=before, limit=history.PAGE_MAX):
        if not prune(item.value):
            break
        gone.append(item.seq)
    return [history.retraction(gone, "expired", refs=_REFS)] if gone else []


async def _write(session: SegueSession, stored: segue.AsyncSession, head: int, entries: list[Draft]) -> bool:
    """One append behind what was seen; facts that came since do not matter, messages do."""
    if len(entries) > BATCH_MAX:
        return False
    while True:
        try:
            await session._append(stored, entries, expect=head)  # noqa: SLF001
        except HeadMoved as moved:
            if await session._hop(history.is_contradicted, stored.sync, after=head, upto=moved.actual):  # noqa: SLF001
                return False
            head = moved.actual
        else:
            return True


def _made(items: Sequence[Any]) -> list[Draft]:
    return [history.message(item, refs=_REFS) for item in items]

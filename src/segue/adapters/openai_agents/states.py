"""RunStates that wait for a person: kept with the session, resumed once, expiring."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from agents import RunState

import segue
from segue.errors import Conflict, HeadMoved, IdConflict, NotDone, NotFound
from segue.model import Policy, new_id

from . import history
from .turn import TTL, WAIT, Turn, TurnContext, turn_of

if TYPE_CHECKING:
    from .session import SegueSession

STATE = "agents.state"
CLAIM = "agents.claim"
EXPIRES_IN = timedelta(days=7)
SHOWN_MAX = 100
"""Most states that are looked through."""


class StateTaken(Conflict):
    """The state was resumed before, here or in another process; its approved calls are not made again."""

    def __init__(self, state: str, run: str | None, at: datetime | None) -> None:
        Conflict.__init__(
            self,
            f"state {state!r} was resumed before (run {run}, {at}); its calls are not made again: "
            "read the session to see what came of it",
        )
        self.state = state
        self.run = run
        self.at = at


class StateExpired(NotDone):
    """The state is older than it was allowed to become. Ask the person again, in a new run."""

    def __init__(self, state: str, at: datetime) -> None:
        super().__init__(f"state {state!r} expired at {at}; ask again in a new run")
        self.state = state
        self.at = at


class StateStale(HeadMoved):
    """The conversation went on since the state was stored; resuming it would put its results behind other turns."""

    def __init__(self, state: str, *, expected: int, actual: int) -> None:
        Conflict.__init__(
            self,
            f"the conversation went on since state {state!r} was stored (last item {expected}, now {actual}); "
            "ask again in a new run",
        )
        self.state = state
        self.expected = expected
        self.actual = actual


class StateMissing(NotFound):
    """No such state is kept with the session, or none that waits."""

    def __init__(self, session: str, state: str | None) -> None:
        NotDone.__init__(
            self,
            f"session {session!r} keeps no state {state!r}; states() shows those that wait"
            if state
            else f"no state of session {session!r} waits; states() shows what it keeps",
        )
        self.session = session


class SavedState(NamedTuple):
    """
    A state that waits.

    Attributes:
        id: Names it within the session.
        calls: The calls that wait for a person: dicts with call_id, name and arguments.
        created_at, expires_at: By the store's clock.
        place: Seq of the newest item when it was stored.
        claim: What its resumption is claimed under: the same for all states of one interruption.
        is_taken: It was resumed.
    """

    id: str
    calls: tuple[dict[str, Any], ...]
    created_at: datetime
    expires_at: datetime
    place: int
    claim: str
    is_taken: bool
    value: dict[str, Any]


async def save(session: SegueSession, state: Any, *, expires_in: timedelta, options: dict[str, Any]) -> str:
    """Store a state; see ``SegueSession.save_state``."""
    stored = await session.stored()
    calls = [_call(item) for item in state.get_interruptions()]
    place = await session._hop(history.last_message, stored.sync)  # noqa: SLF001
    body = {
        "calls": calls,
        "place": place,
        "claim": _claim(stored.id, place, calls),
        "expires_in_seconds": expires_in.total_seconds(),
        "state": state.to_json(**options),
    }
    entry = segue.draft(body, kind=STATE, format="segue", origin="system", refs=(STATE,))
    await session._append(stored, [entry])  # noqa: SLF001
    turn = turn_of(stored.id)
    if turn is not None:
        turn.paused = expires_in
    return entry.id


async def saved(session: SegueSession) -> list[SavedState]:
    """The states of the session, newest first, taken ones included."""
    stored = await session._find()  # noqa: SLF001
    return [] if stored is None else await session._hop(_saved, stored.sync)  # noqa: SLF001


async def find(session: SegueSession, id: str | None) -> SavedState:
    """The state of an id; None: the newest that was not resumed."""
    for one in await saved(session):
        if one.id == id or (id is None and not one.is_taken):
            return one
    stored = await session._find()  # noqa: SLF001
    for hit in [] if stored is None else await stored.by_ref(CLAIM, reverse=True, limit=SHOWN_MAX):
        if hit.entry.json()["state"] == id:  # resumed well, and its content is gone
            raise StateTaken(str(id), hit.entry.run, hit.entry.created_at)
    raise StateMissing(session.session_id, id)


async def load(agent: Any, found: SavedState, options: dict[str, Any]) -> Any:
    """The RunState of a stored state."""
    return await RunState.from_json(agent, found.value, **options)


@asynccontextmanager
async def resume(
    session: SegueSession,
    agent: Any,
    id: str | None,
    *,
    policy: Policy = "enqueue",
    wait: timedelta | None = WAIT,
    ttl: timedelta = TTL,
    options: dict[str, Any],
) -> AsyncIterator[Any]:
    """Claim a state and run it in a turn; see ``SegueSession.resume_state``."""
    found = await find(session, id)
    keep_open = frozenset(call["call_id"] for call in found.calls if call["call_id"])
    async with TurnContext(session, None, policy=policy, wait=wait, ttl=ttl, keep_open=keep_open) as turn:
        stored = await session.stored()
        await _take(session, stored, turn, found)
        yield await load(agent, found, options)
    await session._hop(_hollow, stored.sync, found.claim)  # noqa: SLF001


async def _take(session: SegueSession, stored: segue.AsyncSession, turn: Turn, found: SavedState) -> None:
    """Claim it for this turn: one entry with an id that only one can have."""
    claim = {"state": found.id, "by": new_id()}
    entry = segue.draft(claim, kind=CLAIM, format="segue", origin="system", id=found.claim, refs=(CLAIM,))
    try:
        appended = await turn.append([entry])
    except IdConflict as taken:
        by = (await stored.read(after=taken.seq - 1, upto=taken.seq))[0]
        raise StateTaken(found.id, by.run, by.created_at) from None
    at = (await stored.read(after=appended.seqs[0] - 1, upto=appended.seqs[0]))[0].created_at
    if at >= found.expires_at:
        raise StateExpired(found.id, found.expires_at)
    actual = await session._hop(history.last_message, stored.sync)  # noqa: SLF001
    if actual != found.place:
        raise StateStale(found.id, expected=found.place, actual=actual)


def _saved(stored: segue.Session) -> list[SavedState]:
    taken = {hit.entry.id for hit in stored.by_ref(CLAIM, reverse=True, limit=SHOWN_MAX)}
    entries = [hit.entry for hit in stored.by_ref(STATE, reverse=True, limit=SHOWN_MAX)]
    return [_shown(entry, taken) for entry in entries]


def _shown(entry: segue.Entry, taken: set[str]) -> SavedState:
    body = entry.json()
    until = entry.created_at + timedelta(seconds=body["expires_in_seconds"])
    is_taken = body["claim"] in taken
    return SavedState(
        entry.id, tuple(body["calls"]), entry.created_at, until, body["place"], body["claim"], is_taken, body["state"]
    )


def _hollow(stored: segue.Session, claim: str) -> None:
    """What was resumed is of no more use, and holds the caller's context."""
    for hit in stored.by_ref(STATE, reverse=True, limit=SHOWN_MAX):
        if hit.session == stored.id and hit.entry.json()["claim"] == claim:
            stored.hollow(hit.entry.seq)


def _claim(session: str, place: int, calls: list[dict[str, Any]]) -> str:
    what = json.dumps([session, place, sorted(json.dumps(call, sort_keys=True) for call in calls)])
    return f"claim-{hashlib.sha256(what.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _call(item: Any) -> dict[str, Any]:
    raw = item.raw_item if isinstance(item.raw_item, dict) else vars(item.raw_item)
    return {"call_id": raw.get("call_id") or raw.get("id"), "name": item.name, "arguments": raw.get("arguments")}

"""
Random histories: a store and the model in memory do the same, and must say and show the same.

The world is small on purpose (few sessions, runs, keys, ids), so that operations meet each other.
Times are odd multiples of ten minutes and clocks move by even ones, so that it never depends on the
time that a test takes whether a lease has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from segue.errors import Busy, NotDone, SegueError
from segue.model import Draft, Entry, Hit, Lease, Parent, ScopeKey, SessionInfo, Usage, new_id, to_us
from segue.store import (
    Append,
    Create,
    Erase,
    Filter,
    Fork,
    Hollow,
    Op,
    Page,
    Queued,
    Release,
    Renew,
    Result,
    Store,
    Take,
    Update,
)
from segue.stores.memory import MemoryStore

from .case import ALL_STATUSES, MINUTE, StoreCase, draft

UNIT_US = 10 * MINUTE
STEP_US = 2 * UNIT_US
SPANS_US = (3 * UNIT_US, 7 * UNIT_US, 11 * UNIT_US)
STEPS_MAX = 40

NEW = st.sampled_from(["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"])
PICKED = range(20)
PICKS = st.sampled_from(PICKED)
RUNS = st.sampled_from(["r0", "r1", "r2"])
HOLDERS = st.sampled_from(["", "h0", "h1"])
KEYS = st.sampled_from([None, None, "k/0", "k/1", "K/1"])
TAGS = st.sampled_from([(), ("x",), ("X",), ("x", "y")])
SEQS = st.integers(0, 7)
SPANS = st.sampled_from(SPANS_US)
POLICIES = st.sampled_from(["reject", "enqueue", "interrupt", "rollback"])

ENTRIES = st.builds(
    lambda number, text, kind, refs, spent: draft(
        text, id=f"e{number}", kind=kind, refs=refs, usage=Usage(input=spent) if spent else None
    ),
    st.integers(0, 30),
    st.sampled_from(["same", "same", "same", "same", "other"]),
    st.sampled_from(["message", "message", "note", "cut"]),
    st.sampled_from([(), ("x",), ("y", "x"), ("X",)]),
    st.integers(0, 3),
)
BATCHES = st.lists(ENTRIES, min_size=1, max_size=3).map(tuple)
FEW = st.lists(ENTRIES, max_size=2).map(tuple)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "title": st.sampled_from(["", "t", "T"]),
        "tags": TAGS,
        "key": KEYS,
        "metadata": st.sampled_from([{}, {"b": 1, "a": [2]}]),
        "is_pinned": st.booleans(),
        "is_listed": st.booleans(),
        "idle_us": st.sampled_from([None, *SPANS_US]),
    },
)
FILTERS = st.builds(
    Filter,
    status=st.one_of(st.none(), st.lists(st.sampled_from(ALL_STATUSES), min_size=1, max_size=3).map(tuple)),
    tag=st.sampled_from([None, None, "x", "X", "y"]),
    parent=st.one_of(st.none(), NEW),
    key_prefix=st.sampled_from([None, None, "k/", "K"]),
    pinned=st.sampled_from([None, None, True, False]),
    include_unlisted=st.booleans(),
)

EVERYTHING = Filter(status=ALL_STATUSES, include_unlisted=True)


def histories(case: StoreCase, *, examples: int | None = None, steps: int = STEPS_MAX) -> None:
    """
    Run random histories on a case's store.

    Args:
        case: A test with its two handles open; its clocks are moved, its store is opened again and again.
        examples: How many histories; None: a tenth of what the active profile of hypothesis says (100 by default).
        steps: Most operations of one history.
    """

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(case)

    count = max(1, settings().max_examples // 10) if examples is None else examples
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=count,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class StoreMachine(RuleBasedStateMachine):
    """The rules. Each does the same to a store and to the model, and compares what both say."""

    def __init__(self, case: StoreCase) -> None:
        super().__init__()
        self.case = case
        self.model = MemoryStore()
        self.scope = ScopeKey(f"model-{new_id()}", "user")
        self.born = (case.b.now_us(), self.model.now_us())
        self.granted: list[tuple[str, str, int]] = []
        self.queued: list[tuple[str, str]] = []
        self.fresh = 0

    # Writing.

    @initialize(entries=BATCHES)
    def begin(self, entries: tuple[Draft, ...]) -> None:
        self.both(Create(self.scope, "s0", key="k/0", entries=entries))
        self.both(Create(self.scope, "s1", idle_us=SPANS_US[1]))
        self.append_fresh(0, "message", 3)

    @rule(id=NEW, key=KEYS, tags=TAGS, flags=st.tuples(st.booleans(), st.booleans()), entries=FEW)
    def create(self, id: str, key: str | None, tags: tuple[str, ...], flags: tuple[bool, bool], entries: Any) -> None:
        pinned, listed = flags
        self.both(Create(self.scope, id, key=key, tags=tags, is_pinned=pinned, is_listed=listed, entries=entries))

    @rule(pick=PICKS, entries=BATCHES)
    def append(self, pick: int, entries: tuple[Draft, ...]) -> None:
        session = self.named(pick)
        self.both(Append(self.scope, session, entries))

    @rule(pick=PICKS, kind=st.sampled_from(["message", "effect"]), size=st.integers(1, 3))
    def append_fresh(self, pick: int, kind: str, size: int) -> None:
        session = self.named(pick)
        self.both(Append(self.scope, session, self.fresh_entries(size, kind=kind)))

    @rule(pick=PICKS, off=st.sampled_from([0, 0, 0, -1, 1]), entries=BATCHES)
    def append_expecting(self, pick: int, off: int, entries: tuple[Draft, ...]) -> None:
        session = self.named(pick)
        self.both(Append(self.scope, session, entries, expect=max(0, self.head(session) + off)))

    @rule(pick=PICKS, text=st.sampled_from(["same", "other"]), own=st.booleans())
    def append_again(self, pick: int, text: str, own: bool) -> None:  # noqa: FBT001 - hypothesis fills it
        session = self.named(pick)
        known = [each.id for each in self.log(session) if each.id.startswith("e")][-3:]
        more = self.fresh_entries(1) if own else ()
        self.both(Append(self.scope, session, (*(draft(text, id=id) for id in known), *more)))

    @precondition(lambda self: self.granted)
    @rule(which=st.integers(0, 9), size=st.integers(1, 2))
    def append_fenced(self, which: int, size: int) -> None:
        session, run, fence = self.lease(which)
        self.both(Append(self.scope, session, self.fresh_entries(size), run=run, fence=fence))

    @rule(pick=PICKS, run=RUNS, fence=st.integers(0, 5), entries=BATCHES)
    def append_with_any_fence(self, pick: int, run: str, fence: int, entries: tuple[Draft, ...]) -> None:
        session = self.named(pick)
        self.both(Append(self.scope, session, entries, run=run, fence=fence))

    @rule(pick=PICKS, run=RUNS, ttl_us=SPANS, policy=POLICIES, holder=HOLDERS, over=RUNS, entries=FEW)
    def take(self, pick: int, run: str, ttl_us: int, policy: Any, **fields: Any) -> None:
        session = self.named(pick)
        self.grant(Take(self.scope, session, run, ttl_us, policy, ticket_us=SPANS_US[0], **fields))

    @precondition(lambda self: self.granted)
    @rule(which=st.integers(0, 9), run=RUNS, policy=POLICIES, over=RUNS)
    def contend(self, which: int, run: str, policy: Any, over: str) -> None:
        session, *_ = self.lease(which)
        self.grant(Take(self.scope, session, run, SPANS_US[2], policy, over=over, ticket_us=SPANS_US[2]))

    @precondition(lambda self: self.queued)
    @rule(which=st.integers(0, 3), is_alone=st.booleans())
    def ask_again(self, which: int, is_alone: bool) -> None:  # noqa: FBT001 - hypothesis fills it
        session, run = self.queued[-1 - which % len(self.queued)]
        for each in (run,) if is_alone else ("r0", "r1", "r2"):
            self.grant(Take(self.scope, session, each, SPANS_US[2], "enqueue", ticket_us=SPANS_US[2]))

    @rule(pick=PICKS, run=RUNS, dead=HOLDERS, ticket_us=SPANS)
    def queue_up(self, pick: int, run: str, dead: str, ticket_us: int) -> None:
        session = self.named(pick)
        dead_or_none = dead or None
        self.grant(Take(self.scope, session, run, SPANS_US[1], "enqueue", dead=dead_or_none, ticket_us=ticket_us))

    @precondition(lambda self: self.granted)
    @rule(which=st.integers(0, 9), ttl_us=SPANS)
    def renew(self, which: int, ttl_us: int) -> None:
        session, run, fence = self.lease(which)
        self.both(Renew(self.scope, session, run, fence, ttl_us))

    @precondition(lambda self: self.granted)
    @rule(which=st.integers(0, 9), pause_us=st.sampled_from([None, None, *SPANS_US]))
    def release(self, which: int, pause_us: int | None) -> None:
        session, run, fence = self.lease(which)
        self.both(Release(self.scope, session, run, fence, pause_us=pause_us))

    @rule(pick=PICKS, run=RUNS)
    def leave_queue(self, pick: int, run: str) -> None:
        session = self.named(pick)
        self.both(Release(self.scope, session, run, None))

    @rule(id=NEW, pick=PICKS, at=SEQS, key=KEYS, entries=FEW)
    def fork(self, id: str, pick: int, at: int, key: str | None, entries: tuple[Draft, ...]) -> None:
        source = self.named(pick)
        create = Create(self.scope, id, key=key, entries=entries, parent=Parent(source, at))
        self.both(Fork(create, source, at))

    @rule(pick=PICKS, back=st.integers(0, 2))
    def fork_near_the_head(self, pick: int, back: int) -> None:
        self.fresh += 1
        source = self.named(pick)
        at = max(0, self.head(source) - back)
        self.both(Fork(Create(self.scope, f"f{self.fresh}", parent=Parent(source, at)), source, at))

    @rule(pick=PICKS, changes=CHANGES, off=st.sampled_from([None, None, 0, 1]))
    def update(self, pick: int, changes: dict[str, Any], off: int | None) -> None:
        session = self.named(pick)
        self.both(Update(self.scope, session, changes, self.version(session, off)))

    @rule(pick=PICKS, state=st.sampled_from(["active", "completed", "archived"]))
    def change_state(self, pick: int, state: str) -> None:
        session = self.named(pick)
        self.both(Update(self.scope, session, {"state": state}))

    @rule(pick=PICKS, seqs=st.lists(st.integers(1, 6), min_size=1, max_size=2, unique=True).map(tuple))
    def hollow(self, pick: int, seqs: tuple[int, ...]) -> None:
        session = self.named(pick)
        self.both(Hollow(self.scope, session, seqs))

    @rule(pick=PICKS, off=st.sampled_from([None, 0, 1]), is_sure=st.booleans())
    def erase(self, pick: int, off: int | None, is_sure: bool) -> None:  # noqa: FBT001 - hypothesis fills it
        if is_sure:  # seldom, so that there is something to work on
            session = self.named(pick)
            self.both(Erase(self.scope, session, self.version(session, off)))

    @precondition(lambda self: self.parents)
    @rule(pick=PICKS)
    def erase_a_parent(self, pick: int) -> None:
        self.both(Erase(self.scope, self.parents[pick % len(self.parents)]))

    @rule(pick=PICKS, after=st.integers(-2, 4))
    def sweep(self, pick: int, after: int) -> None:
        session = self.named(pick)
        title = {"title": "swept"}
        self.all_of_each(lambda store: [Update(self.scope, session, title, if_due_us=store.now_us() + after * STEP_US)])

    @rule(picks=st.lists(PICKS, min_size=2, max_size=3), batches=st.lists(BATCHES, min_size=3, max_size=3))
    def commit_several(self, picks: list[int], batches: list[tuple[Draft, ...]]) -> None:
        sessions = [self.named(pick) for pick in picks]
        appends: list[Op] = [Append(self.scope, *pair) for pair in zip(sessions, batches, strict=False)]
        self.all_of([*appends, Take(self.scope, sessions[0], "r0", SPANS_US[1]), appends[0]])

    @rule(pick=PICKS, entries=BATCHES)
    def touch_as_another_user(self, pick: int, entries: tuple[Draft, ...]) -> None:
        session = self.named(pick)
        other = self.scope._replace(user="another")
        self.all_of([Append(other, session, entries), Take(other, session, "r0", SPANS_US[1]), Erase(other, session)])

    @rule(steps=st.integers(1, 4))
    def let_time_pass(self, steps: int) -> None:
        self.case.shift(steps * STEP_US)
        self.model.shift_clock(steps * STEP_US)

    @rule()
    def open_again(self) -> None:
        self.case.reopen()

    # Reading.

    @rule(
        pick=PICKS,
        after=SEQS,
        upto=st.one_of(st.none(), SEQS),
        kinds=st.sampled_from([None, ("message",), ("note", "cut")]),
        reverse=st.booleans(),
        limit=st.integers(1, 5),
    )
    def read(self, pick: int, **bounds: Any) -> None:
        session = self.named(pick)
        self.same(lambda store: store.read(self.scope, session, **bounds))

    @rule(
        ref=st.sampled_from(["x", "y", "X"]),
        pick=st.one_of(st.none(), PICKS),
        reverse=st.booleans(),
        limit=st.integers(1, 6),
    )
    def by_ref(self, ref: str, pick: int | None, **bounds: Any) -> None:
        session = None if pick is None else self.named(pick)
        self.same(lambda store: store.by_ref(self.scope, ref, session=session, **bounds))

    @rule(filter=FILTERS, limit=st.integers(1, 3))
    def page(self, filter: Filter, limit: int) -> None:
        self.same(lambda store: self.pages(store, filter, limit))

    @rule(after=st.integers(-4, 4), limit=st.integers(1, 3))
    def page_due(self, after: int, limit: int) -> None:
        self.same(lambda store: self.pages(store, Filter(due_us=store.now_us() + after * STEP_US), limit))

    @rule(key=st.sampled_from(["k/0", "k/1", "K/1", "k"]))
    def find(self, key: str) -> None:
        self.same(lambda store: store.find(self.scope, key))

    @invariant()
    def both_show_the_same(self) -> None:
        infos = self.same(lambda store: list(store.page(self.scope, EVERYTHING, None, 100).sessions))
        self.same(lambda store: [store.by_ref(self.scope, ref) for ref in ("x", "y")])
        self.same(lambda store: [(store.get(self.scope, info.id), store.read(self.scope, info.id)) for info in infos])

    def teardown(self) -> None:
        self.model.close()

    # How the two are compared.

    def both(self, op: Op) -> Result | NotDone:
        """The model's answer to an operation; the store's must be the same."""
        return self.all_of([op])[0]

    def all_of(self, ops: Sequence[Op]) -> list[Result | NotDone]:
        """The model's answers to the operations of one commit; the store's must be the same."""
        return self.all_of_each(lambda _: ops)

    def all_of_each(self, ops_of: Callable[[Store], Sequence[Op]]) -> list[Result | NotDone]:
        """The same, of operations that name a time by the clock of their store."""
        ops = ops_of(self.case.a)
        theirs, ours = self.case.a.commit(ops), self.model.commit(ops_of(self.model))
        for op, their, our in zip(ops, theirs, ours, strict=True):
            assert comparable(their, self.born[0]) == comparable(our, self.born[1]), (
                f"{op} gave {their}, expected {our}"
            )
        return ours

    def grant(self, op: Take) -> None:
        """Take, and remember what was granted."""
        answer = self.both(op)
        if isinstance(answer, Lease):
            self.granted.append((op.session, answer.run, answer.fence))
        if isinstance(answer, Queued):
            self.queued.append((op.session, op.run))

    def same(self, reading: Callable[[Store], Any]) -> Any:
        """What the model shows; the store must show the same."""
        theirs, ours = _attempt(reading, self.case.b), _attempt(reading, self.model)
        assert comparable(theirs, self.born[0]) == comparable(ours, self.born[1])
        return ours

    def pages(self, store: Store, filter: Filter, limit: int) -> list[SessionInfo]:
        """All pages together."""
        found: list[SessionInfo] = []
        cursor = None
        for _ in range(50):
            page: Page = store.page(self.scope, filter, cursor, limit)
            found += page.sessions
            cursor = page.cursor
            if cursor is None:
                return found
        raise AssertionError("the pages do not end")

    # What the rules know.

    def named(self, pick: int) -> str:
        """The id of a living session, and now and then one that is erased or was never there."""
        living = self.living
        if not living or pick == max(PICKED):
            return f"s{len(living)}"
        return living[pick % len(living)]

    @property
    def living(self) -> list[str]:
        """Ids of the sessions in the model."""
        return sorted(info.id for info in self.model.page(self.scope, EVERYTHING, None, 100).sessions)

    def fresh_entries(self, size: int, **given: Any) -> tuple[Draft, ...]:
        """Entries that nobody has seen."""
        self.fresh += size
        return tuple(draft(id=f"fresh {self.fresh - n}", **given) for n in range(size))

    def lease(self, which: int) -> tuple[str, str, int]:
        """Session, run and fence of one of the latest grants."""
        return self.granted[-1 - which % min(3, len(self.granted))]

    @property
    def parents(self) -> list[str]:
        """Ids of the living sessions that have a living fork."""
        infos = self.model.page(self.scope, EVERYTHING, None, 100).sessions
        forked = {info.parent.session for info in infos if info.base and info.parent}
        return [session for session in self.living if session in forked]

    def model_info(self, session: str) -> SessionInfo | None:
        """The session in the model, or None."""
        found = _attempt(lambda store: store.get(self.scope, session), self.model)
        return found if isinstance(found, SessionInfo) else None

    def version(self, session: str, off: int | None) -> int | None:
        """The session's version in the model, or so many higher; None for None."""
        info = self.model_info(session)
        return None if off is None else (info.version if info else 1) + off

    def head(self, session: str) -> int:
        """The session's head in the model."""
        info = self.model_info(session)
        return info.head if info else 0

    def log(self, session: str) -> list[Entry]:
        """The session's entries in the model."""
        return self.model.read(self.scope, session) if self.model_info(session) else []


def _attempt(reading: Callable[[Store], Any], store: Store) -> Any:
    try:
        return reading(store)
    except SegueError as error:
        return error


def comparable(value: Any, born_us: int) -> Any:
    """A value in which times are tens of minutes since ``born_us`` and errors are their facts."""
    match value:
        case Busy():
            return "Busy", value.run
        case SegueError():
            return type(value).__name__, {k: v for k, v in vars(value).items() if k != "where"}
        case datetime():
            return round((to_us(value) - born_us) / UNIT_US)
        case Entry():
            return [*value._replace(created_us=round((value.created_us - born_us) / UNIT_US))]
        case Hit():
            return value.session, comparable(value.entry, born_us)
        case list() | tuple():
            return [comparable(each, born_us) for each in value]
        case dict():
            return {name: comparable(each, born_us) for name, each in value.items()}
        case msgspec.Struct():
            return {name: comparable(getattr(value, name), born_us) for name in value.__struct_fields__}
    return value

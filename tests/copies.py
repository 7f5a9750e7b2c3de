"""A world of mixed sessions, all that a store shows of it, and copies in processes that are killed."""

from __future__ import annotations

import contextlib
import random
from datetime import UTC, datetime, timedelta

import fleet
import segue
from segue.copying import copy
from segue.model import Parent, new_id, to_us
from segue.store import Create, Erase, Filter, Hollow
from segue.transfer import Transfer

OWNERS = (("acme", "lin"), ("acme", "王"), ("Ünder", "lin"))
STATUSES = ("running", "idle", "paused", "completed", "archived")
EVERY = "every"
"""A ref of every entry: who owns what is then an index away."""

HOUR_US = 3_600_000_000


def fill(db, sessions, *, seed=7):
    """Sessions of every sort, made over a year: the clock is moved, so that times are worth keeping."""
    dice = random.Random(seed)
    clock = db.engine.store
    began = clock.now_us()
    clock.shift_clock(-400 * 24 * HOUR_US)
    for owner in OWNERS:
        me = db.scope(*owner)
        made = []
        for number in range(-(-sessions // len(OWNERS))):
            clock.shift_clock(2 * HOUR_US)
            _step(dice, db, me, made, f"{number:04}-{dice.getrandbits(32):08x}")
    clock.shift_clock(began - clock.now_us())


def _step(dice, db, me, made, id):
    """One more session, and now and then something done to one that is there."""
    what = dice.choice(("new", "new", "fork", "fork", "child", "linked"))
    if not made or what == "new":
        one = _new(dice, me, id)
        talk(dice, db, one, dice.choice((0, 1, 2, 8)))
        if dice.random() < 0.1:
            facts(one, 450)
    elif what == "fork":
        parent = dice.choice(made)
        one = parent.fork(dice.randint(0, parent.refresh().head), id=id, title="another way")
        talk(dice, db, one, dice.choice((0, 1, 2)))
    else:
        parent = dice.choice(made)
        link = Parent(parent.id, parent.refresh().head, dice.choice(("child", "anew", "spill")))
        db.engine.do(Create(me.key, id, parent=link, is_listed=what == "linked", config=b'{"name":"a"}'))
        one = me.open(id)
        talk(dice, db, one, 1)
    settle(dice, one)
    made.append(one)
    if dice.random() < 0.25:
        info = (chosen := dice.choice(made)).refresh()
        own = range(info.base + 1, info.head + 1)
        db.engine.do(Hollow(me.key, chosen.id, tuple(dice.sample(own, min(2, len(own))))))
    if dice.random() < 0.15:
        db.engine.do(Erase(me.key, made.pop(dice.randrange(len(made))).id))


def _new(dice, me, id):
    return me.create(
        id=id,
        key=f"k/{id}" if dice.random() < 0.5 else None,
        title=dice.choice(("", "华东八月", "x" * 300)),
        tags=dice.sample(("a", "A", "ü", "sales"), dice.randrange(4)),
        metadata=dice.choice(({}, {"b": [1, None, {"深": 1.5}], "a": "x"})),
        pinned=dice.random() < 0.2,
        idle=dice.choice((None, timedelta(days=3))),
        expires_at=dice.choice((None, datetime(2099, 1, 2, 3, 4, 5, 678_901, UTC))),
        format=dice.choice(("anthropic", "openai.chat")),
    )


def talk(dice, db, session, turns):
    for turn in range(turns):
        db.engine.store.shift_clock(dice.randrange(HOUR_US // 10))
        occurred = datetime(2026, 1, 2, 3, 4, 5, dice.randrange(1_000_000), UTC) if dice.random() < 0.3 else None
        with session.run(id=new_id()) as run:
            run.append({"role": "user", "content": f"接着昨天那个 {turn} {dice.random()}"}, refs=(EVERY,))
            run.append(
                {"role": "assistant", "content": "word " * dice.choice((1, 40, 2_000))},
                refs=(EVERY, f"turn:{turn}"),
                usage=segue.Usage(dice.randrange(9_000), dice.randrange(900), 5, 4, 3, 2),
                occurred_at=occurred,
            )
            if dice.random() < 0.3:
                body = b'{ "spelled": 1e2,\t"as": "\\u00e9" }'
                run.append(body, kind="observation", format="json", refs=(EVERY, "source:x"))
        if dice.random() < 0.2:
            raw = bytes([0, 255, *dice.randbytes(20)])
            session.append(raw, kind="app.raw", format="raw", origin="import", refs=(EVERY,))


def facts(session, count):
    """Many entries at once."""
    session.append(*({"n": n} for n in range(count)), kind="app.fact", format="json", refs=(EVERY,))


def settle(dice, session):
    """How it stands: in use, completed, put away, or waiting for a person."""
    how = dice.choice(("", "", "", "end", "archive", "pause", "rename"))
    if how == "pause":
        session.run(id=new_id()).pause(timedelta(days=3_000))
    elif how == "rename":
        session.rename("renamed")
    elif how:
        getattr(session, how)()


# What a store shows


def everything(db):
    """All that a store shows, but what its contract gives nobody a way to carry over; times apart."""
    store = db.engine.store
    shown = {}
    for scope in db.scopes():
        infos = listed(db, scope)
        living = {info.id for info in infos}
        for info in infos:
            facts = (
                info.key, info.format, info.title, info.state, info.status, info.head, info.base, info.tags,
                dict(info.metadata), info.is_pinned, info.is_listed, info.config, info.idle_us, info.expires_at,
                info.usage, info.parent, info.lease and (info.lease.run, info.lease.state),
            )  # fmt: skip
            hits = store.by_ref(scope, EVERY, session=info.id)
            owners = [(hit.entry.seq, hit.session if hit.session in living else "erased") for hit in hits]
            entries = [entry._replace(created_us=0) for entry in db.scope(*scope).open(info.id).read()]
            shown[*scope, info.id] = facts, owners, entries
    return shown


def listed(db, scope):
    found, cursor = [], None
    while True:
        page = db.engine.store.page(scope, Filter(status=STATUSES, include_unlisted=True), cursor, 500)
        found += page.sessions
        cursor = page.cursor
        if cursor is None:
            return found


def times(db):
    """When each session and entry was made, and when a session was put away."""
    found = {}
    for scope in db.scopes():
        for info in listed(db, scope):
            found[*scope, info.id, 0] = to_us(info.created_at)
            found[*scope, info.id, -1] = to_us(info.active_at)
            if info.archived_at is not None:
                found[*scope, info.id, -2] = to_us(info.archived_at)
            for entry in db.scope(*scope).open(info.id).read():
                found[*scope, info.id, entry.seq] = entry.created_us
    return found


# Copies that are killed


def killed_copies(source, target, *, kills, seed):
    """
    Copy, and be killed while it goes on, so many times; each from where the last one got to.

    Returns:
        How many were killed before they were done.
    """
    dice = random.Random(seed)
    count = 0
    for _ in range(kills):
        ours, theirs = fleet.CONTEXT.Pipe()
        process = fleet.CONTEXT.Process(target=_copy, args=(theirs, source, target), daemon=True)
        process.start()
        theirs.close()
        with contextlib.suppress(EOFError, OSError):
            total = ours.recv().entries_total
            until = dice.randrange(max(1, total))
            while ours.recv().entries < until:
                pass
        process.kill()
        process.join()
        ours.close()
        count += process.exitcode == -9
    return count


def _copy(pipe, source, target):
    with contextlib.suppress(BrokenPipeError):
        copy(source, target, progress=pipe.send)


@contextlib.contextmanager
def careless():
    """Copies that take what is there for whole, as long as it lasts."""
    real = Transfer.entries

    def entries(self, scope, source, theirs, tally, *, after, upto):
        if theirs.head:
            self.common[theirs.id] = upto
        else:
            real(self, scope, source, theirs, tally, after=after, upto=upto)

    Transfer.entries = entries
    try:
        yield
    finally:
        Transfer.entries = real

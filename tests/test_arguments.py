"""Arguments of the wrong type are refused at the door, by name: never with an error of Python's own."""

from __future__ import annotations

import inspect
import itertools
from datetime import UTC, datetime, timedelta, timezone, tzinfo

import pytest

import segue
from segue import Run, Scope, Session, Usage, ViewSpec, codec
from segue.errors import Invalid, SegueError
from segue.model import Draft, Parent

QUESTION = {"role": "user", "content": "q"}
ODD = ["a", "", "\ud800", "x" * 5_000, b"x", -1, 1.5, float("nan"), 10**30, True, [], ["a"], [1], {}, {"a": 1}, set()]
ODD += [("a",), object(), timedelta(days=1), None]


class Nowhere(tzinfo):
    """A time zone that does not know how far it is."""

    def utcoffset(self, when):
        return None


class Text(str):
    __slots__ = ()


class Number(float):
    __slots__ = ()


ODD += [datetime.max.replace(tzinfo=timezone(-timedelta(hours=5))), datetime.min.replace(tzinfo=UTC)]
ODD += [datetime(2026, 8, 1), datetime(2026, 8, 1, tzinfo=Nowhere())]
ODD += [Text("a"), {"a": Text("b")}, {"a": [Number(1.5)]}, Usage(True, False), Usage(-1), Usage("1"), Usage(1 << 60)]
ODD += [Parent("p", 0, 5), Parent("p", 0, "other"), Parent("p", -1), Parent("p", 1 << 70)]
LEFT_OUT = {"engine", "log", "drafts", "acquire", "check_lifetime", "lose", "append_fact", "append_drafts"}
LEFT_OUT |= {"anthropic", "openai"}  # what they are given is a client's
NEEDED = {"seqs": (1,), "ref": "r", "key": "k", "title": "t", "patch": {}, "name": "n", "source": "s:x"}
OPTIONS = {
    "create": ("title", "tags", "metadata", "pinned", "listed", "idle", "expires_at"),
    "update": ("title", "tags", "metadata", "pinned", "listed", "key", "idle", "expires_at"),
    "append": ("origin", "refs", "occurred_at", "usage", "id"),
    "list": ("status", "since", "until", "tag", "parent", "key_prefix", "pinned", "unlisted"),
    "resume": ("agent", "config", "sources", "policy", "time_zone", "language", "principal", "stale"),
    "start_anew": ("agent", "title", "tags"),
    "open_key": ("format", "title"),
}


def methods(cls):
    return [n for n, f in vars(cls).items() if inspect.isfunction(f) and not n.startswith("_") and n not in LEFT_OUT]


CASES = [(cls, name) for cls in (Session, Scope, Run) for name in methods(cls)]


@pytest.fixture(params=["memory:", "sqlite:///{}/s.db"])
def db(request, tmp_path):
    with segue.open(request.param.format(tmp_path)) as db:
        yield db


@pytest.mark.parametrize(("cls", "name"), CASES, ids=[f"{cls.__name__}.{name}" for cls, name in CASES])
def test_no_argument_ends_in_an_error_of_pythons_own(db, cls, name):
    function = getattr(cls, name)
    own = [p for p in list(inspect.signature(function).parameters.values())[1:] if p.kind is not p.VAR_KEYWORD]
    tried = 0
    each = [[value] for value in ODD] if name in ("erase", "pause") else [ODD]
    for given in (*(p.name for p in own), *OPTIONS.get(name, ())):
        for values in each:
            with target(db, cls) as there:
                for value in values:
                    if given == "silence" and (value is None or isinstance(value, timedelta)):
                        continue  # it would wait so long
                    positional, named = arguments(there, own, given, value)
                    try:
                        use(getattr(there, name)(*positional, **named))
                    except SegueError:
                        pass
                    except BaseException as error:
                        raise AssertionError(f"{given}={value!r:.40}") from error
                    tried += 1
    assert tried or not own


class target:
    """A session, its scope, or a run of it, in a scope of its own."""

    numbers = itertools.count()

    def __init__(self, db, cls):
        self.scope, self.cls, self.run = db.scope("t", f"u{next(self.numbers)}"), cls, None

    def __enter__(self):
        session = self.scope.create()
        session.append(QUESTION, {"role": "assistant", "content": "a"})
        self.scope.known = session.id
        if self.cls is Run:
            self.run = session.run()
        return {Session: session, Scope: self.scope, Run: self.run}[self.cls]

    def __exit__(self, *_):
        if self.run is not None:
            self.run.release()


def arguments(there, own, given, value):
    """The call with one odd value: all before it by position as they should be, what is by name by name."""
    known = {**NEEDED, "items": (QUESTION,), "id": getattr(there, "known", None), "what": getattr(there, "known", None)}
    positional, named = [], {}
    for p in own:
        is_odd = p.name == given
        if p.kind is p.VAR_POSITIONAL:
            positional += [value] if is_odd else known.get(p.name, ())
        elif is_odd and p.kind is p.KEYWORD_ONLY:
            named[p.name] = value
        elif p.kind is not p.KEYWORD_ONLY and (is_odd or p.default is p.empty):
            positional.append(value if is_odd else known.get(p.name, "x"))
        elif is_odd:
            named[p.name] = value
    if given not in {p.name for p in own}:
        named[given] = value
    if "silence" in {p.name for p in own}:
        named.setdefault("silence", timedelta())
    return positional, named


def use(made):
    if inspect.isgenerator(made):
        list(itertools.islice(made, 3))
    elif isinstance(made, Run):
        made.release()


@pytest.mark.parametrize(
    ("what", "where"),
    [
        (lambda me, s: s.hollow("a"), "seqs"),
        (lambda me, s: s.hollow(True), "seqs"),
        (lambda me, s: me.create(parent=s), "parent"),
        (lambda me, s: me.create(parent=Parent(s.id, "1")), "parent"),
        (lambda me, s: me.create(agent={"name": "a"}), "agent"),
        (lambda me, s: s.run(agent="analyst"), "agent"),
        (lambda me, s: s.run(keep_open="call_1"), "keep_open"),
        (lambda me, s: s.start_anew(agent="analyst"), "agent"),
        (lambda me, s: me.resume(7), "what"),
        (lambda me, s: me.resume(s, policy="verify"), "policy"),
        (lambda me, s: me.resume(s, sources={}), "sources"),
        (lambda me, s: me.resume(s, time_zone=8), "time_zone"),
        (lambda me, s: s.read(kinds="message"), "kinds"),
        (lambda me, s: s.read(after=True), "after"),
        (lambda me, s: s.history(upto="3"), "upto"),
        (lambda me, s: s.by_ref("r", limit=1 << 63), "limit"),
        (lambda me, s: me.by_ref("r", since="yesterday"), "since"),
        (lambda me, s: s.view({"format": "anthropic"}), "spec"),
        (lambda me, s: s.view(ViewSpec("anthropic", keep_open=1)), "keep_open"),
        (lambda me, s: s.append(QUESTION, ids=7), "ids"),
        (lambda me, s: s.append(QUESTION, refs={"a": 1}), "refs"),
        (lambda me, s: s.tag(7), "tags"),
        (lambda me, s: s.tag(remove="a"), "remove"),
        (lambda me, s: s.set_metadata("a"), "patch"),
        (lambda me, s: s.update(tags=7), "tags"),
        (lambda me, s: me.list(status=7), "status"),
    ],
)
def test_a_wrong_type_is_told_by_the_name_of_the_argument(db, what, where):
    me = db.scope("t", "u")
    session = me.create()
    head = session.append(QUESTION).head
    with pytest.raises(Invalid) as refused:
        what(me, session)
    assert refused.value.where == where
    assert session.refresh().head == head and session.info.lease is None


@pytest.mark.parametrize("format", ["anthropic", "openai.chat", "openai.responses"])
def test_content_of_which_nothing_says_whose_it_is_is_refused(db, format):
    session = db.scope("t", "u").create(format=format)
    with pytest.raises(Invalid, match="says in 'role' whose it is") as refused:
        session.append({"content": "no role"})
    assert refused.value.where == "role"
    session.append({"payload": "what an SDK wraps"})  # kept, and said not to be a message
    assert [omission.reason for omission in session.view().omitted] == ["not-a-message"]


def test_what_is_refused_says_what_to_use_instead(db):
    me = db.scope("t", "u")
    with pytest.raises(Invalid, match=r"must be a Parent, not Session; session.child\(name\) makes"):
        me.create(parent=me.create())


BODY = b'{"role":"user","content":"q"}'
MADE = Draft("message", "anthropic", "user", BODY, codec.digest(BODY), "d-1", ("r",), 1, Usage(1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 5},
        {"kind": ""},
        {"format": "x" * 300},
        {"origin": "evil"},
        {"body": b"no JSON"},
        {"body": b'{"a":1,"a":2}'},
        {"body": "text"},
        {"body": None},
        {"digest": b"\0" * 32},
        {"id": "x" * 5_000},
        {"refs": "r"},
        {"refs": (5,)},
        {"occurred_us": 1 << 70},
        {"occurred_us": True},
        {"occurred_us": "now"},
        {"usage": Usage(-1)},
        {"usage": (1, 2)},
    ],
    ids=repr,
)
@pytest.mark.parametrize("made", [MADE, segue.log.draft({"role": "user", "content": "q"})], ids=["by hand", "by us"])
def test_a_draft_is_looked_at_whoever_made_it(db, made, wrong):
    session = db.scope().create()
    draft = made._replace(**wrong)
    if wrong.get("body"):
        draft = draft._replace(digest=codec.digest(draft.body if isinstance(draft.body, bytes) else b""))
    with pytest.raises(Invalid):
        session.append(draft)
    assert session.refresh().head == 0
    session.append(made)
    assert session.read()[0].body == BODY

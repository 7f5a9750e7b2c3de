"""Bundles that meet what is there: nothing comes back, nothing is mixed, nothing is told twice."""

from __future__ import annotations

import hashlib
import io
import json
from contextlib import closing, contextmanager
from datetime import timedelta

import pytest
import zstandard

import import_samples as samples
import segue
from segue import codec
from segue.errors import Archived, Corrupt, HeadMoved, IdConflict, Invalid
from segue.exporters import bundle as bundles
from segue.exporters import export_bundle, import_bundle
from segue.importers import import_file
from segue.model import Parent
from segue.usage import of_scope


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def texts(session):
    return [message["content"] for message in session.messages()]


def bundle(*sessions):
    out = io.BytesIO()
    export_bundle(sessions, out)
    return out.getvalue()


def bring(scope, body, **options):
    return bundles.bring_bundle(scope, io.BytesIO(body), **options)


def stored(session):
    """All of a log but when it was stored, which is the store's."""
    return [entry._replace(created_us=0, occurred_us=None) for entry in session.history()]


@contextmanager
def store(url="memory:"):
    with closing(segue.open(url)) as db:
        yield db.scope()


@pytest.fixture
def here():
    with store() as scope:
        yield scope


@pytest.fixture
def there():
    with store() as scope:
        yield scope


@pytest.fixture(params=["memory", "sqlite", "jsonl"])
def target(request, tmp_path):
    with store(
        {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/a.db", "jsonl": f"jsonl:{tmp_path}/j"}[request.param]
    ) as scope:
        yield scope


# What came of runs, and what was erased


@pytest.mark.parametrize("policy", ["rollback", "interrupt"])
def test_what_a_run_took_back_stays_taken_back(here, target, policy):
    session = here.create()
    session.append(user("one"), said("two"))
    session.run(id="first").append(user("mistaken"), said("half"))
    with session.run(policy=policy) as run:
        run.append(user("three"))
    (again,) = import_bundle(target, io.BytesIO(bundle(session)))
    assert {entry.run for entry in again.history()} >= {"first", None}
    assert stored(again) == stored(session)
    assert again.messages() == session.messages()
    assert ("mistaken" in texts(again)) == (policy == "interrupt")


CALLS = (
    user("go"),
    {"role": "assistant", "content": [{"type": "tool_use", "id": name, "name": "f", "input": {}} for name in "ab"]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": name, "content": "1"} for name in "ab"]},
    said("done"),
)


@pytest.mark.parametrize("seq", [1, 2, 3, 4, 5, 6, 7])
def test_an_erased_entry_of_any_kind_stays_what_it_was(here, target, seq):
    session = here.create()
    session.append(*CALLS, usage=segue.Usage(10, 5))
    session.append(b"\xff", kind="blob", format="raw", refs=("r",))
    for n in (1, 2):
        session.append({"upto": n, "summary": None}, kind="cut", format="segue", refs=("cut",))
    assert session.read(after=5, upto=6)[0].kind == "cut"
    session.append({"upto": 0, "summary": None}, kind="cut", format="segue", refs=("cut",))
    session.hollow(seq)
    body = bundle(session)
    (again,) = import_bundle(target, io.BytesIO(body))
    assert stored(again) == stored(session)
    assert again.read(after=seq - 1, upto=seq)[0].is_hollow
    assert (again.messages(), again.refresh().usage) == (session.messages(), session.refresh().usage)
    assert [one.entries for one in bring(target, body)] == [0]


def test_an_import_that_was_killed_before_it_emptied_an_entry_is_mended(here, target, monkeypatch):
    session = here.create(id="s")
    session.append(*CALLS)
    session.hollow(2)
    body = bundle(session)

    def killed(session, items):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(bundles, "_empty", killed)
        bring(target, body)
    with pytest.raises(Corrupt):
        target.open("s").read()
    bring(target, body)
    assert stored(target.open("s")) == stored(session)


def test_what_an_older_segue_put_in_the_place_of_an_erased_entry_is_known(here, there):
    session = here.create(id="s", key="k")
    session.append(user("one"), ids=["e1"])
    old = there.create(id="s", key="k")
    old.append(b"", kind=bundles.ERASED, format="raw", ids=["e1"])
    for scope, body in ((there, bundle(session)), (here, bundle(old))):
        (one,) = bring(scope, body)
        assert (one.session.id, one.is_new, one.entries) == ("s", False, 0)


def test_what_was_erased_here_stays_erased_in_a_fork_that_comes_back(here):
    parent = here.create(id="p")
    parent.append(user("private"), said("yes"))
    fork = parent.fork(id="f")
    fork.append(user("more"))
    body = bundle(parent, fork)
    alone = bundle(fork)
    parent.hollow(1)
    fork.erase()
    for packed in (body, alone):
        back = import_bundle(here, io.BytesIO(packed))[-1]
        assert [entry.is_hollow for entry in back.history()] == [True, False, False]
        assert back.info.base == 2


# Sessions that went on in both places


NAMED = {
    "retract": {"seqs": [3, 4]},
    "cut": {"upto": 3, "summary": None},
    "mask": {"results": [{"seq": 3, "call": "t", "text": "superseded"}]},
}


@pytest.mark.parametrize("kind", NAMED)
def test_what_names_entries_by_number_names_the_same_ones_where_both_went_on(here, target, kind):
    mine = here.create(id="p", key="k", title="p")
    mine.append(user("one"), said("two"))
    (yours,) = import_bundle(target, io.BytesIO(bundle(mine)))
    yours.append(user("keep me"), said("kept"))
    before = stored(yours)
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    mine.append({"role": "assistant", "content": [call]})
    mine.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]})
    mine.append(NAMED[kind], kind=kind, format="segue", refs=(kind,))
    mine.append(user("three"))
    body = bundle(mine)
    (planned,) = bring(target, body, is_dry=True)
    (fork,) = bring(target, body)
    assert (planned.is_new, planned.entries) == (fork.is_new, fork.entries) == (True, 4)
    assert planned.session is None
    assert stored(yours) == before
    assert fork.session.info.parent == Parent("p", 2, "fork")
    assert stored(fork.session) == stored(mine)
    assert fork.session.messages() == mine.messages()
    for is_dry in (True, False):
        (again,) = bring(target, body, is_dry=is_dry)
        assert (again.session.id, again.is_new, again.entries) == (fork.session.id, False, 0)


def test_a_fork_of_a_bundle_goes_on_and_parts_again(here, there):
    mine = here.create(id="p")
    mine.append(user("one"))
    bring(there, bundle(mine))
    there.open("p").append(user("theirs"))
    mine.append(user("two"))
    (first,) = import_bundle(there, io.BytesIO(bundle(mine)))
    mine.append(user("three"))
    (same,) = import_bundle(there, io.BytesIO(bundle(mine)))
    assert (same.id, texts(same)) == (first.id, ["one", "two", "three"])
    first.append(user("theirs, too"))
    mine.append(user("four"))
    for _ in range(2):
        (second,) = import_bundle(there, io.BytesIO(bundle(mine)))
        assert stored(second) == stored(mine)
        assert second.info.parent == Parent(first.id, 3, "fork")
    assert len(list(there.iterate(unlisted=True))) == 3


def test_a_fork_that_went_on_otherwise_from_its_first_entry_parts_again(here, there):
    mine = here.create(id="p")
    mine.append(user("one"))
    bring(there, bundle(mine))
    yours = there.open("p")
    yours.append(user("theirs"))
    mine.append(user("two"))
    body = bundle(mine)
    (fork,) = import_bundle(there, io.BytesIO(body))
    key = fork.info.key
    fork.erase()
    other = yours.fork(1, key=key)  # as an import leaves it that was killed before it wrote, and somebody used it
    other.append(user("else"))
    (again,) = import_bundle(there, io.BytesIO(body))
    assert (texts(other), texts(again)) == (["one", "else"], ["one", "two"])
    assert again.info.parent == Parent(other.id, 1, "fork")


def test_a_session_that_goes_on_while_it_is_brought_is_not_mixed(here, there, monkeypatch):
    mine = here.create(id="p")
    mine.append(user("one"))
    bring(there, bundle(mine))
    mine.append(user("two"))
    write = bundles._Arrival._write

    def meanwhile(self, items):
        there.open("p").append(user("theirs"))
        write(self, items)

    with monkeypatch.context() as patch, pytest.raises(HeadMoved):
        patch.setattr(bundles._Arrival, "_write", meanwhile)
        bring(there, bundle(mine))
    assert texts(there.open("p")) == ["one", "theirs"]
    assert texts(import_bundle(there, io.BytesIO(bundle(mine)))[0]) == ["one", "two"]


def test_there_and_back_again_a_session_is_the_same_one(here, there):
    mine = here.create()
    mine.append(user("0"))
    for n in range(1, 5):
        scope, other = (here, there) if n % 2 else (there, here)
        (moved,) = import_bundle(other, io.BytesIO(bundle(scope.open(mine.id))))
        moved.append(user(str(n)))
    assert texts(mine) == list("01234")
    assert [len(list(scope.iterate(unlisted=True))) for scope in (here, there)] == [1, 1]


# Which session it is


@pytest.mark.parametrize("is_empty", [False, True])
@pytest.mark.parametrize("same", ["key", "id", "both"])
def test_two_sessions_of_one_key_or_id_stay_two(here, target, same, is_empty):
    mine = here.create(id="mine" if same == "key" else "s", key=None if same == "id" else "ticket")
    mine.append(user("my own"), ids=["e1"])
    yours = target.create(id="yours" if same == "key" else "s", key=None if same == "id" else "ticket")
    if not is_empty:
        yours.append(user("another altogether"), ids=["e2"])
    body = bundle(mine)
    (planned,) = bring(target, body, is_dry=True)
    (one,) = bring(target, body)
    is_known = is_empty and same != "key"  # an empty session of the same id may be the beginning of it
    assert planned.is_new is one.is_new is not is_known
    assert planned.entries == one.entries == 1
    if not is_known:
        assert texts(yours) == ([] if is_empty else ["another altogether"])
        assert one.session.id != yours.id
    assert texts(one.session) == ["my own"]
    assert one.session.id == mine.id or same != "key"
    (again,) = bring(target, body)
    assert (again.session.id, again.is_new, again.entries) == (one.session.id, False, 0)


def test_one_file_that_was_imported_in_both_places_is_one_session(here, there, tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(samples.claude())
    mine, yours = (scope.open(import_file(scope, path).sessions[0].id) for scope in (here, there))
    assert mine.id != yours.id
    assert mine.info.key == yours.info.key
    (one,) = bring(there, bundle(mine))
    assert (one.session.id, one.is_new, one.entries) == (yours.id, False, 0)


def test_an_entry_of_the_same_id_with_other_content_fails_by_name(here, there):
    for scope, text in ((here, "one"), (there, "else")):
        scope.create(id="s").append(user(text), ids=["e1"])
    with pytest.raises(IdConflict, match="e1"):
        bring(there, bundle(here.open("s")))


@pytest.mark.parametrize("id", ["s" * 255, "数" * 85, "x"])
@pytest.mark.parametrize("key", [None, "k"])
def test_what_was_erased_and_is_brought_back_is_known_by_any_id(here, id, key):
    session = here.create(id=id, key=key)
    empty = here.create(id=id[:-1] + "y", key=key and "l")
    session.append(user("one"))
    body = bundle(session, empty)
    session.erase()
    empty.erase()
    back = [one.session.id for one in bring(here, body)]
    assert [here.open(one).info.key for one in back][0] == (key or here.open(back[0]).info.key)
    assert [one.session.id for one in bring(here, body)] == back


@pytest.mark.parametrize("link", ["fork", "child", "anew", "spill"])
@pytest.mark.parametrize("is_together", [True, False])
def test_a_link_leads_to_the_parent_under_its_new_id(here, link, is_together):
    parent = here.create(id="p")
    parent.append(user("one"))
    other = here.create(id="q", parent=Parent("p", 1, link))
    other.append(user("two"))
    bodies = [bundle(parent, other)] if is_together else [bundle(parent), bundle(other)]
    other.erase()
    parent.erase()
    parent, other = [one.session for body in bodies for one in bring(here, body)]
    assert parent.id != "p"
    assert other.info.parent == Parent(parent.id, 1, link)
    assert texts(other) == ["two"]


def test_a_fork_has_its_format_whatever_its_parent_here_has(here, there):
    mine = here.create(id="p", format="anthropic")
    mine.append(user("one"), ids=["e1"])
    there.create(id="p", format="openai.chat").append(user("one"), ids=["e1"])
    (fork,) = import_bundle(there, io.BytesIO(bundle(mine.fork(id="f"))))
    assert (fork.info.format, fork.messages()) == ("anthropic", [user("one")])


# What a session is, besides its entries


@pytest.mark.parametrize("change", ["end", "archive", "reopen"])
def test_a_session_that_was_ended_or_put_away_comes_in_so(here, target, change):
    session = here.create()
    session.append(user("one"))
    session.end()
    getattr(session, change)()
    body = bundle(session)
    (again,) = import_bundle(target, io.BytesIO(body))
    assert again.refresh().state == session.refresh().state
    again.restore() if change == "archive" else again.reopen()
    import_bundle(target, io.BytesIO(body))
    assert again.refresh().state == "active"


def test_new_entries_of_what_is_archived_here_are_refused(here, there):
    session = here.create()
    session.append(user("one"))
    (again,) = import_bundle(there, io.BytesIO(bundle(session)))
    again.archive()
    session.append(user("two"))
    with pytest.raises(Archived):
        bring(there, bundle(session))


def test_lifetimes_of_the_parent_are_not_those_of_a_fork_that_comes_in(here, there):
    parent = here.create(id="p")
    parent.append(user("one"))
    bring(there, bundle(parent))
    there.open("p").update(idle=timedelta(days=1))
    (fork,) = import_bundle(there, io.BytesIO(bundle(parent.fork(id="f"))))
    assert (fork.info.base, fork.info.idle) == (1, None)


# Forks share, whenever their parent came in


@pytest.fixture
def kin(here):
    """A session, a fork, a fork of that, and a child; entries, tokens, an erased one and states in all of them."""
    main = here.create(id="main", key="m")
    main.append(user("one"), said("two"), usage=segue.Usage(3, 1))
    fork = main.fork(1, id="fork")
    fork.append(said("other"), usage=segue.Usage(5, 2))
    twig = fork.fork(id="twig")
    with twig.run(id="r") as run:
        run.append(user("three"))
    twig.append(user("secret"))
    twig.hollow(4)
    child = main.child("helper")
    child.append(user("task"), usage=segue.Usage(7, 7))
    child.end()
    return [main, fork, twig, child]


def looks(scope):
    infos = [scope.open(id).refresh() for id in ("main", "fork", "twig", "child") if id != "child"]
    infos += [info for info in scope.iterate(unlisted=True) if info.parent is not None and info.parent.link == "child"]
    return of_scope(scope), [
        (one.id, one.key, one.head, one.base, one.parent, one.state, one.usage, stored(scope.open(one.id)))
        for one in infos
    ]


def lines_of(body):
    return zstandard.ZstdDecompressor().stream_reader(body).read().splitlines(keepends=True)


@pytest.mark.parametrize("batch", [1, 2, 500])
def test_an_import_that_was_cut_off_anywhere_is_finished_by_the_next(here, kin, batch, monkeypatch):
    monkeypatch.setattr(bundles, "BATCH", batch)
    body = bundle(*kin)
    lines = lines_of(body)
    for n in range(len(lines)):
        with store() as scope:
            with pytest.raises(Invalid):
                bring(scope, zstandard.compress(b"".join(lines[:n])))
            bring(scope, body)
            assert looks(scope) == looks(here), n


@pytest.mark.parametrize("first", [[0], [0, 1], [1], [2], [3], [2, 1, 0]])
def test_a_fork_shares_with_a_parent_that_was_there(here, there, kin, first):
    bring(there, bundle(*[kin[n] for n in first]))
    for n in (0, 1, 2, 3):
        bring(there, bundle(kin[n]))
    if first in ([0], [0, 1], [3], [2, 1, 0]):  # no fork came before its parent
        assert looks(there) == looks(here)
    for session in kin:
        assert stored(there.open(session.id)) == stored(session)


def test_a_fork_shares_only_what_its_parent_has_here(here, there):
    mine = here.create(id="p")
    mine.append(user("one"), said("two"), user("three"))
    yours = there.create(id="p")
    bring(there, bundle(mine.fork(1, id="q")))
    yours.append(*[e.json() for e in mine.read(upto=1)], ids=[e.id for e in mine.read(upto=1)])
    yours.append(user("else"))
    fork = mine.fork(id="f")
    fork.append(user("four"))
    (again,) = import_bundle(there, io.BytesIO(bundle(fork)))
    assert (again.info.base, again.info.parent) == (1, Parent("p", 1, "fork"))
    assert stored(again) == stored(fork)


# What others may have written


def forged(session, line, change):
    """A bundle of the session in which one line was changed, with a manifest that fits."""
    lines = lines_of(bundle(session))
    value = json.loads(lines[line - 1])
    change(next(iter(value.values())))
    lines[line - 1] = json.dumps(value).encode() + b"\n"
    manifest = json.loads(lines[-1])
    manifest["manifest"]["sha256"] = hashlib.sha256(b"".join(lines[:-1])).hexdigest()
    return zstandard.compress(b"".join([*lines[:-1], json.dumps(manifest).encode() + b"\n"]))


BAD = {
    2: [
        {"id": 5}, {"id": "x" * 300}, {"id": ""}, {"key": 5}, {"key": "\n"}, {"head": -1}, {"head": "2"}, {"title": 5},
        {"tags": "a"}, {"tags": 5}, {"metadata": []}, {"pinned": 1}, {"listed": None}, {"state": "new"}, {"state": []},
        {"format": 5}, {"parent": 5}, {"parent": {}}, {"parent": {"session": "p", "seq": -1, "link": "fork"}},
        {"parent": {"session": "p", "seq": 1, "link": []}}, {"parent": {"session": [], "seq": 1, "link": "fork"}},
    ],
    4: [
        {"seq": 1}, {"seq": 3}, {"seq": 0}, {"seq": "2"}, {"seq": None}, {"run": 5}, {"run": ""}, {"run": "x" * 300},
        {"digest": "00"}, {"digest": 5}, {"digest": "00" * 32}, {"text": 5}, {"text": "{}"}, {"text": "\ud800"},
        {"refs": 5}, {"refs": "abc"}, {"refs": [5]}, {"refs": ["x" * 300]}, {"usage": 5}, {"usage": [-1]},
        {"usage": [1, 2, 3, 4, 5, 6, 7]}, {"usage": [2**70]}, {"usage": ["a"]}, {"id": 5}, {"id": "x" * 5_000},
        {"kind": 5}, {"kind": ""}, {"format": []}, {"origin": "god"}, {"origin": None}, {"occurred_us": 2**70},
        {"occurred_us": "a"}, {"occurred_us": None, "created_us": []}, {"text": "no JSON"}, {"text": '{"a":1,"a":2}'},
        {"text": "x" * (5 << 20), "format": "raw"},
    ],
}  # fmt: skip


@pytest.mark.parametrize(("line", "wrong"), [(line, wrong) for line, all in BAD.items() for wrong in all])
@pytest.mark.parametrize("is_dry", [True, False])
def test_a_forged_line_is_refused_with_its_file_and_number(here, there, tmp_path, line, wrong, is_dry):
    session = here.create(id="s")
    session.append(user("one"), said("two"))
    path = tmp_path / "b.segue"
    body = wrong.get("text")
    digest = {"digest": codec.digest(body.encode()).hex()} if isinstance(body, str) and len(body) > 2 else {}
    path.write_bytes(forged(session, line, lambda value: value.update(wrong | digest)))
    with path.open("rb") as file, pytest.raises((Invalid, Corrupt), match=f"b.segue, line {line}: "):
        bundles.bring_bundle(there, file, is_dry=is_dry)
    assert [len(list(one.history())) for one in map(there.open, [i.id for i in there.iterate()])] in ([], [1])


LINES = [
    b"[" * 100_000, b'{"entry":' + b"[" * 100_000 + b"]" * 100_000 + b"}", b"5", b"null", b'"session"', b'["session"]',
    b'{"session":5}', b'{"session":{}}', b'{"session":null}', b'{"entry":[]}', b'{"entry":{}}', b"\xff", b"",
    b'{"manifest":5}', b'{"manifest":{}}',
]  # fmt: skip


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:20])
def test_a_line_that_is_none_is_refused_with_its_number(here, there, line, at):
    session = here.create(id="s")
    session.append(user("one"))
    lines = lines_of(bundle(session))[:-1]
    lines[at:at] = [line + b"\n"]
    with pytest.raises(Invalid, match=f"^line {at + 1}: "):
        bring(there, zstandard.compress(b"".join(lines)))


def test_links_that_are_a_circle_end_an_export(there):
    one = there.create(id="a", parent=Parent("b", 0, "anew"))
    two = there.create(id="b", parent=Parent("a", 0, "anew"))
    loop = there.create(id="c", parent=Parent("c", 0, "anew"))
    assert len(bring(there, bundle(one, two, loop))) == 3


def test_an_id_that_comes_twice_is_refused(here, there):
    session = here.create(id="s")
    session.append(user("one"), user("one"), ids=["a", "b"])
    with pytest.raises(Invalid, match="twice"):
        bring(there, forged(session, 4, lambda value: value.update(id="a")))

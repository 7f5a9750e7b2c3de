"""Exports: bundles come back whole, pages run nothing, and what is left out is told."""

from __future__ import annotations

import io
import json
import re
from contextlib import closing
from html.parser import HTMLParser

import pytest
import zstandard

import import_samples as samples
import segue
from import_samples import messages_of
from segue.errors import Corrupt, Invalid
from segue.exporters import (
    export_bundle,
    export_html,
    export_markdown,
    export_messages,
    export_original,
    import_bundle,
)
from segue.family import family
from segue.importers import import_file
from segue.model import Parent

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&]]>```\n````\n\x1b[31m"


@pytest.fixture
def scope():
    with closing(segue.open("memory:")) as db:
        yield db.scope()


@pytest.fixture
def session(scope, tmp_path):
    (tmp_path / "c.jsonl").write_bytes(samples.claude())
    report = import_file(scope, tmp_path / "c.jsonl")
    return scope.get_key(report.sessions[0].key)


def bundle(*sessions):
    out = io.BytesIO()
    export_bundle(sessions, out)
    return out.getvalue()


def plain(entry):
    return entry._replace(created_us=0, occurred_us=None, run=None)


def test_a_bundle_comes_back_whole_and_once(session):
    session.append({"role": "user", "content": "more"})
    body = bundle(session)
    with closing(segue.open("memory:")) as db:
        (again,) = import_bundle(db.scope(), io.BytesIO(body))
        assert [plain(e) for e in again.history()] == [plain(e) for e in session.history()]
        assert (again.info.title, again.info.tags, again.info.metadata) == (
            session.info.title, session.info.tags, session.info.metadata,
        )  # fmt: skip
        head = again.refresh().head
        import_bundle(db.scope(), io.BytesIO(body))
        assert again.refresh().head == head
        assert again.messages() == session.messages()


def test_an_erased_entry_keeps_its_place_in_a_bundle(session):
    session.hollow(2)
    with closing(segue.open("memory:")) as db:
        (again,) = import_bundle(db.scope(), io.BytesIO(bundle(session)))
        assert [e.id for e in again.history()] == [e.id for e in session.history()]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "newer", "other", "without", "link"])
def test_a_damaged_bundle_is_refused(session, scope, damage):
    body = bundle(session)
    lines = zstandard.ZstdDecompressor().stream_reader(body).read().splitlines(keepends=True)
    if damage == "cut":
        lines = lines[:-3]
    elif damage == "changed":
        lines[2] = lines[2].replace(b"claude", b"mallory").replace(b'"seq":', b'"seq" :')
    elif damage == "newer":
        lines[0] = lines[0].replace(b'"version":1', b'"version":99')
    elif damage == "without":
        lines[1] = lines[1].replace(b'"title"', b'"heading"')
    elif damage == "link":
        lines[1] = lines[1].replace(b'"parent":null', b'"parent":{"session":"s","seq":1,"link":"friend"}')
    elif damage == "other":
        lines = [b'{"a":1}\n']
    packed = b"" if damage == "empty" else zstandard.compress(b"".join(lines))
    with closing(segue.open("memory:")) as db, pytest.raises((Invalid, Corrupt)):
        import_bundle(db.scope(), io.BytesIO(packed))


def test_messages_are_the_view_with_what_it_leaves_out(session):
    out = io.BytesIO()
    left = export_messages(session, out, format="openai.chat")
    assert [m["role"] for m in json.loads(out.getvalue())][:4] == ["user", "assistant", "tool", "assistant"]
    assert left == []
    rows = io.BytesIO()
    export_messages(session, rows, format="openai.chat", lines=True)
    assert [json.loads(row) for row in rows.getvalue().splitlines()] == json.loads(out.getvalue())


def test_an_original_of_what_was_never_imported_is_refused(scope):
    with pytest.raises(Invalid, match="not imported"):
        export_original(scope.create(), io.BytesIO())


def test_an_erased_message_is_gone_from_the_original_and_told(session):
    seq = messages_of(session)[0].seq
    session.hollow(seq)
    out = io.BytesIO()
    assert [one.seq for one in export_original(session, out)] == [seq]
    assert "第 0 个" not in out.getvalue().decode()
    assert "第 1 个" in out.getvalue().decode()


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text.append(data)


def test_a_page_runs_and_fetches_nothing_whatever_the_session_holds(scope):
    session = scope.create(title=EVIL)
    blocks = [
        {"type": "image", "source": {"type": "url", "url": 'https://e.example/"onload="x'}},
        {"type": "text", "text": EVIL},
    ]
    call = {"type": "tool_use", "id": "t", "name": EVIL, "input": {EVIL: EVIL}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": EVIL}
    session.append(
        {"role": "user", "content": blocks},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    )
    out = io.BytesIO()
    left = export_html(session, out)
    page = Page(out.getvalue().decode())
    allowed = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "section",
        "pre",
        "details",
        "summary",
        "p",
    }
    assert {tag for tag, _ in page.tags} <= allowed
    assert not any(name.startswith("on") or name in ("src", "href") for _, attrs in page.tags for name in attrs)
    assert "default-src 'none'" in next(
        a["content"] for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert EVIL in "".join(page.text)
    assert [one.reason for one in left] == ["not-fetched"]


def test_a_page_shows_pictures_that_are_in_the_session(scope):
    session = scope.create()
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    session.append({"role": "user", "content": [{"type": "image", "source": source}]})
    out = io.BytesIO()
    assert export_html(session, out) == []
    assert 'src="data:image/png;base64,iVBORw0KGgo="' in out.getvalue().decode()


@pytest.mark.parametrize(
    ("export", "heads"),
    [
        (export_markdown, [r"## Tool · ", r"\*\*← query_sales\*\*", r"\*\*← publish: error\*\*"]),
        (
            export_html,
            [r'class="tool".*Tool · ', r"<summary>← query_sales 1\.9<", r"<summary>← publish: error refused<"],
        ),
    ],
)
def test_a_result_is_told_as_the_tools_with_its_name(scope, export, heads):
    session = scope.create()
    calls = [{"type": "tool_use", "id": f"t{n}", "name": name, "input": {}} for n, name in enumerate(NAMES)]
    results = [
        {"type": "tool_result", "tool_use_id": "t0", "content": "1.9"},
        {"type": "tool_result", "tool_use_id": "t1", "content": "refused", "is_error": True},
    ]
    session.append({"role": "assistant", "content": calls}, {"role": "user", "content": results})
    page = exported(export, session)
    for head in heads:
        assert re.search(head, page), head
    assert "User" not in page


@pytest.mark.parametrize("export", [export_markdown, export_html])
def test_a_result_without_its_call_has_the_calls_id_and_words_beside_it_are_the_users(scope, export):
    session = scope.create()
    result = {"type": "tool_result", "tool_use_id": "t7", "content": "1.9"}
    session.append({"role": "user", "content": [result, {"type": "text", "text": "And now?"}]})
    page = exported(export, session)
    assert "← t7" in page
    assert "User · " in page


NAMES = ("query_sales", "publish")


def exported(export, session):
    out = io.BytesIO()
    export(session, out)
    return out.getvalue().decode()


def test_markdown_fences_hold_whatever_is_in_them(scope):
    session = scope.create(title="A\nB")
    session.append(
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "sh\n```", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": EVIL}]},
    )
    out = io.BytesIO()
    export_markdown(session, out)
    text = out.getvalue().decode()
    assert text.startswith("# A B\n")
    fence = re.search(r"^(`{5,})\n", text, re.MULTILINE)[1]
    assert text.count(f"\n{fence}\n") == 2


def test_what_was_taken_back_is_not_read_out_and_told(session):
    seq = messages_of(session)[0].seq
    session.append({"seqs": [seq]}, kind="retract", format="segue", refs=("retract",))
    for export in (export_markdown, export_html):
        out = io.BytesIO()
        assert ("retracted", seq) in [(one.reason, one.seq) for one in export(session, out)]
        assert "第 0 个" not in re.sub(r"(?s)^.*?(##|<section)", "", out.getvalue().decode(), count=1)


@pytest.mark.parametrize("export", [export_markdown, export_html])
def test_a_turn_that_was_rolled_back_is_not_read_out(scope, export):
    session = scope.create()
    session.append({"role": "user", "content": "first"})
    with session.run() as run:
        run.append({"role": "user", "content": "a secret"})
        with session.run(policy="rollback") as other:
            other.append({"role": "user", "content": "instead"})
    out = io.BytesIO()
    assert [(one.seq, one.reason) for one in export(session, out)] == [(2, "retracted")]
    text = out.getvalue().decode()
    assert "first" in text and "instead" in text and "a secret" not in text


def test_a_family_comes_back_with_its_links_and_forks_share_again(scope, tmp_path):
    main = scope.create(title="main", key="k1")
    main.append({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"})
    child = main.child("helper", title="helper")
    child.append({"role": "user", "content": "sub task"}, usage=segue.Usage(5, 1))
    fork = main.fork(2, title="fork")
    fork.append({"role": "user", "content": "another way"})
    twig = fork.fork(title="twig")
    lone = scope.create(parent=Parent("not in the bundle", 3, "anew"))
    sessions = [twig, lone, child, fork, main]
    body = bundle(*sessions)
    url = f"sqlite:///{tmp_path}/other.db"
    for _ in range(2):
        with closing(segue.open(url)) as db:
            again = {session.id: session for session in import_bundle(db.scope(), io.BytesIO(body))}
            for one in sessions:
                other = again[one.id]
                assert [plain(e) for e in other.history()] == [plain(e) for e in one.history()]
                assert (other.refresh().parent, other.info.base, other.info.usage) == (
                    one.refresh().parent, one.info.base, one.info.usage,
                )  # fmt: skip
            assert [s.info.title for s in family(db.scope(), again[main.id])] == ["main", "helper"]
            assert len(list(db.scope().iterate(unlisted=True))) == len(sessions)


def test_a_bundle_of_what_was_erased_here_comes_in_under_a_new_id_and_once(scope):
    session = scope.create(title="gone")
    session.append({"role": "user", "content": "hi"})
    fork = session.fork()
    body = bundle(session, fork)
    fork.erase()
    session.erase()
    (back, twin) = import_bundle(scope, io.BytesIO(body))
    assert back.id != session.id
    assert (twin.info.parent.session, twin.info.base) == (back.id, 1)
    assert [s.id for s in import_bundle(scope, io.BytesIO(body))] == [back.id, twin.id]
    assert [m["content"] for m in twin.messages()] == ["hi"]


def test_a_bundle_of_more_than_one_append_takes_comes_back(scope):
    session = scope.create()
    for n in range(12):
        session.append({"role": "user", "content": f"{n} " + "x" * 3_000_000})
    with closing(segue.open("memory:")) as db:
        (again,) = import_bundle(db.scope(), io.BytesIO(bundle(session)))
        assert [plain(e) for e in again.history()] == [plain(e) for e in session.history()]

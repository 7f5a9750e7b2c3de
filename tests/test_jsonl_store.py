"""The JSON-lines store: the contract, and what is special to a folder that people read."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
import stat
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsonl_folder import ME, add, all_bytes, begin, do, draft, file_of, findings, fork, ids
from segue.errors import Corrupt, DiskFull, Exists, Invalid, Locked, NotFound, ReadOnly, TooNew, Unavailable
from segue.model import ScopeKey
from segue.store import Append, Create, Erase, Filter, Hollow, Renew, Take, Update
from segue.stores import _jsonl_names as names
from segue.stores import jsonl
from segue.stores.jsonl import JsonlStore
from segue.testing import StoreSuite

MINUTE = 60_000_000


class TestJsonlStore(StoreSuite):
    def make_store(self, directory: Path) -> JsonlStore:
        return JsonlStore(directory / "folder")


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(tmp_path / "folder")


# For people.


def test_every_line_is_json_and_the_first_says_whose_it_is(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft(), title="Sales")
    do(store, Update(ME, "s", {"title": "Sales by SKU"}))
    do(store, Take(ME, "s", "run-1", MINUTE))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (lines[0]["tenant"], lines[0]["user"], lines[0]["session"]) == (*ME, "s")
    assert [next(iter(line)) for line in lines] == ["segue", "seq", "seq", "row", "lease"]
    assert lines[3]["row"]["title"] == "Sales by SKU"


def test_an_entry_is_a_line_with_its_body_as_it_is(store: JsonlStore) -> None:
    body = '{"role":"user","content":"接着昨天那个","n":1.0}'.encode()
    file = begin(store, "s", draft(body=body, id="one", refs=("call:7",)))
    (line,) = [line for line in file.read_bytes().splitlines() if line.startswith(b'{"seq":1,')]
    assert body in line
    assert json.loads(line)["body"] == json.loads(body)
    assert json.loads(line)["refs"] == ["call:7"]


def test_grep_finds_words_of_any_language(store: JsonlStore) -> None:
    begin(store, "s", draft("接着昨天那个"), draft("quarterly"))
    found = subprocess.run(["grep", "-rl", "昨天", store._folder.path], capture_output=True, check=True, text=True)
    assert found.stdout.splitlines() == [str(file_of(store))]


BODIES = {
    "text": b'{\n  "pretty": true\n}',
    "base64": bytes(range(256)),
    "body": b' {"b":1, "a":[1e2, -0.0, 0.10000000000000000555]} ',
}


@pytest.mark.parametrize(("member", "body"), BODIES.items())
def test_a_body_is_embedded_where_its_bytes_allow_it_and_a_string_else(
    store: JsonlStore, member: str, body: bytes
) -> None:
    file = begin(store, "s", draft(body=body, format="raw"))
    assert member in json.loads(file.read_text().splitlines()[1])
    assert store.read(ME, "s")[0].body == body


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=60) | st.text(max_size=40).map(str.encode), min_size=1, max_size=20))
def test_any_bytes_come_back_and_every_line_stays_json(tmp_path_factory: pytest.TempPathFactory, bodies: list) -> None:
    store = JsonlStore(tmp_path_factory.mktemp("bytes") / "folder")
    file = begin(store, "s", *(draft(body=body, format="raw") for body in bodies))
    assert [entry.body for entry in store.read(ME, "s")] == bodies
    assert len([json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]) == len(bodies) + 1
    store.close()


TRAPS = [
    b'{"a":"x\\ny"}',
    b'{"crc":"00000000","body":1}',
    b'","crc":"',
    b'{"a":1}\r',
    "\u2028\u0085".encode(),
    b'"\\u0000"',
    b"\0",
    b"",
    b"[" * 5_000,
    b'{"a":1,"a":2}',
    b"1" * 5_000,
    b'\xef\xbb\xbf{"a":1}',
    b"NaN",
    b'"\xed\xa0\x80"',
    b"{} {}",
    b'"a\tb"',
]


@pytest.mark.parametrize("body", TRAPS)
def test_bodies_that_look_like_lines_or_break_readers_come_back(store: JsonlStore, body: bytes) -> None:
    file = begin(store, "s", draft(body=body, format="raw", refs=('","crc":"', '{"seq":9')))
    add(store)
    (entry, _) = JsonlStore(store._folder.path).read(ME, "s")
    assert (entry.body, entry.refs) == (body, ('","crc":"', '{"seq":9'))
    for line in file.read_bytes().split(b"\n")[:-1]:
        json.loads(line)


def test_metadata_may_hold_a_member_named_like_our_checksum(store: JsonlStore) -> None:
    metadata = {"crc": "00000000", "row": {"crc": "x"}}
    begin(store, "s", metadata=metadata)
    do(store, Update(ME, "s", {"title": "t"}))
    assert JsonlStore(store._folder.path).get(ME, "s").metadata == metadata


def test_the_lines_alone_are_enough(store: JsonlStore, tmp_path: Path) -> None:
    """A clone has no lock, lease or index files: they are ignored by version control."""
    begin(store, "s", draft(), draft())
    do(store, Take(ME, "s", "run-1", MINUTE))
    fork(store, "f", "s", 1)
    ignored = shutil.ignore_patterns(*(Path(store._folder.path) / ".gitignore").read_text().split())
    shutil.copytree(store._folder.path, tmp_path / "clone", ignore=ignored)
    clone = JsonlStore(tmp_path / "clone")
    for session in ("s", "f"):
        assert clone.read(ME, session) == store.read(ME, session)
    assert clone.get(ME, "s").fence == 1


def test_a_file_that_an_editor_wrote_anew_is_read_again(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft())
    before = store.read(ME, "s")
    copy = file.with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.replace(file)
    assert store.read(ME, "s") == before
    assert add(store).head == 3


# Names.

HOSTILE = [
    ".", "..", "...", "../../etc/passwd", "/", "a/b", "a\\b", "CON", "con", "nul.txt", "com1", "lpt9.x", "aux.",
    "A", "a", "Ä", "ä", "a\u0308", "%41", "%2e%2e", "~", "a~b", ".hidden", "-rf", "x.jsonl", "x.lease", ".index",
    ".tmp-1-1", "segue.json", "segue.lock", "x.jsonl.torn-1", "名" * 85, "😀" * 60, "n" * 255, "N" * 255, "n" * 254,
    "space ", " space", "a:b", "a*b?", "\u202egnp.exe", "İ", "ı", "ß", "ss", "\u200b", "a" * 120, "*", "|",
]  # fmt: skip


def test_hostile_names_are_names_and_nothing_else(store: JsonlStore, tmp_path: Path) -> None:
    outside = sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(store._folder.path))
    for name in HOSTILE:
        for scope, session in ((ScopeKey(name, "u"), "s"), (ScopeKey("t", name), "s"), (ScopeKey("t", "u"), name)):
            do(store, Create(scope, session, entries=(draft(f"of {name}"),)))
    again = JsonlStore(store._folder.path)
    for name in HOSTILE:
        for scope, session in ((ScopeKey(name, "u"), "s"), (ScopeKey("t", name), "s"), (ScopeKey("t", "u"), name)):
            assert again.get(scope, session).scope == scope
            assert again.read(scope, session)[0].json()["content"] == f"of {name}"
    scopes = {ScopeKey(name, "u") for name in HOSTILE} | {ScopeKey("t", name) for name in HOSTILE}
    assert again.scopes(None, 1_000) == sorted(scopes | {ScopeKey("t", "u")})
    assert len(again.page(ScopeKey("t", "u"), Filter(), None, 1_000).sessions) == len(HOSTILE)
    assert sorted(path for path in tmp_path.rglob("*") if not path.is_relative_to(store._folder.path)) == outside


def test_no_two_names_share_a_file_where_case_is_not_told_apart() -> None:
    files = [names.file_of(name) for name in HOSTILE]
    assert len({file.casefold() for file in files}) == len(HOSTILE)
    assert all(file == file.lower() and len(file) <= 200 and not file.startswith(".") for file in files)


@given(st.text(min_size=1, max_size=60))
def test_file_names_are_reversible(name: str) -> None:
    if "\ud800" <= max(name) <= "\udfff":
        return
    file = names.file_of(name)
    assert names.name_of(file) == (None if names.is_long(file) else name)
    assert "/" not in file
    assert "\0" not in file


def test_a_name_too_long_for_a_file_is_in_its_first_line(store: JsonlStore) -> None:
    name = "名" * 85
    begin(store, name, scope=ScopeKey(name, name))
    (file,) = Path(store._folder.path).rglob("*.jsonl")
    assert "~" in file.name
    assert json.loads(file.read_text().splitlines()[0])["session"] == name


# Whose it is.


def test_everything_is_private_whatever_the_umask(tmp_path: Path) -> None:
    for umask in (0, 0o777):
        before = os.umask(umask)
        try:
            folder = tmp_path / f"folder-{umask}"
            store = JsonlStore(folder) if umask == 0 else JsonlStore(_made(folder))
            begin(store, "s", draft())
            do(store, Take(ME, "s", "run-1", MINUTE))
            do(store, Renew(ME, "s", "run-1", 1, MINUTE))
            do(store, Hollow(ME, "s", (1,)))
            store.close()
        finally:
            os.umask(before)
        for path in (folder, *folder.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def _made(folder: Path) -> Path:
    folder.mkdir()
    folder.chmod(0o700)
    return folder


def test_a_link_in_place_of_a_session_is_not_followed(store: JsonlStore, tmp_path: Path) -> None:
    file, target = begin(store), tmp_path / "target"
    target.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(target)
    for act in (lambda: store.read(ME, "s"), lambda: add(store), lambda: do(store, Erase(ME, "s"))):
        with pytest.raises(Corrupt, match="link"):
            act()
    assert target.read_bytes()
    assert file.is_symlink()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_link_in_place_of_a_directory_is_not_followed(store: JsonlStore, tmp_path: Path, depth: int) -> None:
    directory = begin(store).parents[2 - depth]
    directory.rename(tmp_path / "elsewhere")
    directory.symlink_to(tmp_path / "elsewhere")
    for act in (lambda: store.read(ME, "s"), lambda: add(store), lambda: begin(store, "new")):
        with pytest.raises(Corrupt, match="link"):
            act()


def test_a_link_in_place_of_a_lease_is_not_followed(store: JsonlStore, tmp_path: Path) -> None:
    file = begin(store)
    do(store, Take(ME, "s", "run-1", MINUTE))
    file.with_suffix(".lease").symlink_to(tmp_path / "target")
    with pytest.raises(Corrupt, match="link"):
        do(store, Renew(ME, "s", "run-1", 1, MINUTE))
    assert not (tmp_path / "target").exists()


def test_a_pipe_in_place_of_a_session_blocks_nobody(store: JsonlStore) -> None:
    file = begin(store)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(Corrupt):
        store.read(ME, "s")
    assert store.page(ME, Filter(), None, 10).sessions == ()


def test_a_file_moved_to_another_owner_gives_that_one_nothing(store: JsonlStore) -> None:
    file, other = begin(store, "s", draft("secret")), ScopeKey("acme", "mallory")
    begin(store, "own", scope=other)
    shutil.copy(file, file_of(store, "s", other))
    with pytest.raises(Corrupt):
        store.get(other, "s")
    assert "secret" not in str(store.page(other, Filter(), None, 10))
    with pytest.raises(Corrupt):
        store.read(other, "s")


def test_a_line_moved_to_another_session_is_damage_there(store: JsonlStore) -> None:
    file, other = begin(store, "s", draft("secret")), begin(store, "other", draft())
    with other.open("ab") as opened:
        opened.write(file.read_bytes().splitlines(keepends=True)[1].replace(b'"seq":1', b'"seq":2'))
    with pytest.raises(Corrupt):
        JsonlStore(store._folder.path).read(ME, "other")


# The folder.


def test_a_folder_that_holds_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(Invalid, match="letters"):
        JsonlStore(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["letters"]


def test_a_folder_under_version_control_may_be_begun_in(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    store = JsonlStore(tmp_path)
    assert [text for level, text, *_ in store.check(deep=False) if "git" in text]


def test_a_folder_of_a_newer_segue_is_refused_and_untouched(store: JsonlStore) -> None:
    about = Path(store._folder.path) / "segue.json"
    about.write_text('{"format":2,"store":"jsonl","more":[1]}')
    with pytest.raises(TooNew) as caught:
        JsonlStore(store._folder.path)
    assert (caught.value.found, caught.value.known) == (2, 1)
    assert about.read_text() == '{"format":2,"store":"jsonl","more":[1]}'


@pytest.mark.parametrize(
    ("text", "error"),
    [("{", Corrupt), ('{"format":"x"}', Corrupt), ('{"format":1,"store":"y"}', Invalid), ('{"format":2}', TooNew)],
)
def test_a_strange_segue_json_is_refused_and_nothing_added(tmp_path: Path, text: str, error: type[Exception]) -> None:
    (tmp_path / "segue.json").write_text(text)
    with pytest.raises(error):
        JsonlStore(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["segue.json"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Invalid):
        JsonlStore(tmp_path / "file")


def test_a_network_file_system_is_refused_by_name_unless_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl, "network_file_system", lambda _: "nfs4")
    with pytest.raises(Unavailable, match="nfs4"):
        JsonlStore(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []
    JsonlStore(tmp_path / "folder", allow_network=True).close()


def test_a_reader_takes_no_lock_and_writes_nothing(store: JsonlStore) -> None:
    begin(store, "s", draft())
    before = all_bytes(Path(store._folder.path))
    reader = JsonlStore(store._folder.path, read_only=True)
    with (Path(store._folder.path) / "segue.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert ids(reader) == ids(store)
        with pytest.raises(ReadOnly):
            add(reader)
    reader.check(deep=True)
    reader.close()
    assert all_bytes(Path(store._folder.path)) == before


def test_a_process_that_holds_the_lock_too_long_is_named(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path, busy_timeout=timedelta(milliseconds=20))
    begin(store)
    with (tmp_path / "segue.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Locked, match=str(os.getpid())):
            add(store)
        assert ids(store) == []  # readers need no lock
    assert add(store).head == 1


def test_a_lock_file_that_was_removed_lets_no_two_write_at_once(tmp_path: Path) -> None:
    store, other = JsonlStore(tmp_path), JsonlStore(tmp_path, busy_timeout=timedelta(milliseconds=20))
    begin(store)
    add(other)
    (tmp_path / "segue.lock").unlink()
    with store._lock.held(), pytest.raises(Locked):
        add(other)


def test_a_forked_child_and_its_parent_both_write(store: JsonlStore) -> None:
    begin(store)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for no in range(20):
                add(store, draft(id=f"child-{no}"))
            status = 0
        finally:
            os._exit(status)
    for no in range(20):
        add(store, draft(id=f"parent-{no}"))
    assert os.waitpid(child, 0)[1] == 0
    assert [entry.seq for entry in store.read(ME, "s")] == list(range(1, 41))


# What a handle keeps in memory.


def test_a_warm_handle_reads_the_last_entries_and_no_more(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(store)
    for _ in range(10):
        add(store, *(draft("x" * 300) for _ in range(1_000)))
    store.read(ME, "s", reverse=True, limit=20)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *what: read.append(what[1]) or pread(*what))
    assert [entry.seq for entry in store.read(ME, "s", reverse=True, limit=20)] == list(range(10_000, 9_980, -1))
    assert sum(read) < 20_000


def test_many_sessions_are_listed_from_the_index_file(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.commit([Create(ME, f"s{no}", title=f"title {no}", entries=(draft(),)) for no in range(50)])
    expected = store.page(ME, Filter(), None, 100)
    store.close()
    again = JsonlStore(store._folder.path)
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("a session's file was read"))
    assert again.page(ME, Filter(), None, 100) == expected


@pytest.mark.parametrize("spoil", ["remove", "damage", "empty", "grow"])
def test_an_index_file_that_is_wrong_or_missing_changes_nothing(store: JsonlStore, spoil: str) -> None:
    store.commit([Create(ME, f"s{no}", title=f"title {no}", entries=(draft(),)) for no in range(20)])
    store.close()
    index = file_of(store).parent / ".index"
    data = index.read_bytes()
    match spoil:
        case "remove":
            index.unlink()
        case "damage":
            index.write_bytes(data.replace(b"title 7", b"title 8"))
        case "empty":
            index.write_bytes(b"")
    again = JsonlStore(store._folder.path)
    if spoil == "grow":
        do(JsonlStore(store._folder.path), Update(ME, "s7", {"title": "newer"}))
    titles = {info.id: info.title for info in again.page(ME, Filter(), None, 100).sessions}
    assert titles["s7"] == ("newer" if spoil == "grow" else "title 7")
    assert len(titles) == 20


def test_a_handle_forgets_places_rather_than_keep_too_many(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.stores._jsonl_shelf.ENTRIES_MAX", 10)
    for no in range(5):
        begin(store, f"s{no}", *(draft() for _ in range(4)))
    for no in range(5):
        assert add(store, session=f"s{no}").head == 5
        assert len(store.read(ME, f"s{(no + 1) % 5}")) in (4, 5)
    assert store._shelf._entries <= 10 + 5


def test_one_commit_may_write_to_more_sessions_than_files_may_be_open(store: JsonlStore) -> None:
    results = store.commit([Create(ME, f"s{no % 300}", entries=(draft(),)) for no in range(301)])
    assert [result.head for result in results] == [1] * 301  # the last is the first again
    results = store.commit([Append(ME, f"s{no}", (draft(),)) for no in range(301)])
    assert [getattr(result, "head", None) for result in results] == [2] * 300 + [None]
    assert isinstance(results[-1], NotFound)


# Leases.


def test_renewals_make_no_file_grow_for_ever(store: JsonlStore) -> None:
    file = begin(store, "s", draft())
    lease = do(store, Take(ME, "s", "run-1", MINUTE))
    before = file.stat().st_size
    for _ in range(300):
        do(store, Renew(ME, "s", "run-1", lease.fence, MINUTE))
    assert file.stat().st_size == before
    assert file.with_suffix(".lease").stat().st_size < 20_000
    assert JsonlStore(store._folder.path).get(ME, "s").lease is not None


@pytest.mark.parametrize("data", [b"", b"\0" * 100, b'{"lease":null,"fence":9,"rev":99,"crc":"00000000"}\n', b"torn"])
def test_a_damaged_lease_file_gives_no_fence_twice(store: JsonlStore, data: bytes) -> None:
    file = begin(store)
    assert do(store, Take(ME, "s", "run-1", MINUTE)).fence == 1
    file.with_suffix(".lease").write_bytes(data)
    assert findings(store, "warn")
    again = JsonlStore(store._folder.path)
    again.shift_clock(2 * MINUTE)
    assert do(again, Take(ME, "s", "run-2", MINUTE)).fence == 2
    assert do(again, Renew(ME, "s", "run-2", 2, MINUTE)).run == "run-2"


# Gone for good.

SECRET = "Zugangscode-4711"


@pytest.fixture
def raced(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], JsonlStore]:
    """A reader, while another handle erases the fork in the moment before a session's table is looked at."""
    begin(store, "parent", draft(refs=("r",)), draft())
    fork(store, "fork", "parent", 2)
    add(store, draft(refs=("r",)), session="fork")
    begin(store, "other", draft(refs=("r",)))
    do(store, Erase(ME, "parent"))

    def reader(at: str, erased: str) -> JsonlStore:
        other = JsonlStore(store._folder.path, read_only=True)
        table, looks = other._shelf.table, 0

        def looked(place: Any, scope: ScopeKey, session: str, *, full: bool = True) -> Any:
            nonlocal looks
            looks += full and session == at
            if full and session == at and looks == 1:
                do(store, Erase(ME, erased))
            return table(place, scope, session, full=full)

        monkeypatch.setattr(other._shelf, "table", looked)
        return other

    return reader


@pytest.mark.parametrize("at", ["parent", "fork"])
@pytest.mark.parametrize(
    "act", [lambda store: store.read(ME, "fork"), lambda store: store.by_ref(ME, "r", session="fork")]
)
def test_a_fork_that_is_erased_while_it_is_read_is_not_there_and_not_damaged(
    raced: Callable[[str, str], JsonlStore], act: Callable[[JsonlStore], object], at: str
) -> None:
    reader = raced(at, "fork")
    for _ in range(2):
        with pytest.raises(NotFound):
            act(reader)


def test_a_fork_whose_parent_is_lost_is_damaged_also_while_others_are_erased(
    raced: Callable[[str, str], JsonlStore], store: JsonlStore
) -> None:
    reader = raced("parent", "other")
    file_of(store, "parent").unlink()
    with pytest.raises(Corrupt):
        reader.read(ME, "fork")


def test_a_search_passes_over_a_session_that_is_erased_meanwhile(raced: Callable[[str, str], JsonlStore]) -> None:
    assert [hit.session for hit in raced("other", "other").by_ref(ME, "r")] == ["fork"]


def test_nothing_of_an_erased_session_is_left_in_the_folder(store: JsonlStore) -> None:
    store.commit([Create(ME, f"s{no}", entries=(draft(),)) for no in range(20)])
    file = begin(
        store, "s", draft(SECRET, refs=(SECRET,)), title=SECRET, tags=(SECRET,), metadata={"a": SECRET}, key=SECRET
    )
    do(store, Take(ME, "s", SECRET, MINUTE, holder=SECRET))
    do(store, Renew(ME, "s", SECRET, 1, MINUTE))
    with file.open("ab") as opened:
        opened.write(b'{"seq":9,"id":"' + SECRET.encode())
    other = JsonlStore(store._folder.path)
    add(other, draft(kind="effect"))  # sets the torn end aside
    other.close()  # writes the index
    assert SECRET.encode() in (file.parent / ".index").read_bytes()
    assert list(file.parent.glob("*.torn-*"))
    do(store, Erase(ME, "s"))
    assert SECRET.encode() not in all_bytes(Path(store._folder.path))
    with pytest.raises(Exists):
        begin(store, "s")


def test_nothing_of_a_hollowed_entry_is_left_in_the_folder(store: JsonlStore) -> None:
    begin(store, "s", draft(), draft(SECRET, refs=(SECRET,)), draft())
    before = store.read(ME, "s")
    do(store, Hollow(ME, "s", (2,)))
    assert SECRET.encode() not in all_bytes(Path(store._folder.path))
    after = JsonlStore(store._folder.path).read(ME, "s")
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] == before[1]._replace(body=None, refs=())


def test_what_forks_share_goes_with_the_last_of_them(store: JsonlStore) -> None:
    begin(store, "s", draft(SECRET), draft("only mine"))
    fork(store, "f", "s", 1)
    fork(store, "g", "f", 1)
    do(store, Erase(ME, "s"))
    assert b"only mine" not in all_bytes(Path(store._folder.path))
    do(store, Erase(ME, "f"))
    assert store.read(ME, "g")[0].json()["content"] == SECRET
    do(store, Erase(ME, "g"))
    assert SECRET.encode() not in all_bytes(Path(store._folder.path))


def test_an_index_written_after_an_erasure_holds_nothing_of_it(store: JsonlStore) -> None:
    stale = JsonlStore(store._folder.path)
    stale.commit([Create(ME, f"s{no}", title=f"{SECRET} {no}") for no in range(30)])
    store.commit([Erase(ME, f"s{no}") for no in range(30)])
    stale.close()
    assert SECRET.encode() not in all_bytes(Path(store._folder.path))


def test_a_session_named_like_something_set_aside_outlives_its_neighbour(store: JsonlStore) -> None:
    for session in ("x", "x.jsonl.torn-1", "x.jsonl.torn-20261129T182400.000000Z", "x.lease"):
        begin(store, session, draft())
    do(store, Erase(ME, "x"))
    assert len(fresh_sessions(store)) == 3


def fresh_sessions(store: JsonlStore) -> tuple:
    return JsonlStore(store._folder.path).page(ME, Filter(), None, 100).sessions


# Limits of the system.


def test_a_file_at_the_limit_of_its_size_is_full_and_nothing_is_torn(store: JsonlStore) -> None:
    file = begin(store, "s", draft("x" * 5_000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 2_000, limits[1]))
    try:
        with pytest.raises(DiskFull):
            add(store, draft("y" * 3_000))
        assert len(store.read(ME, "s")) == 1
        assert add(store, draft("short")).head == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert add(store, draft("y" * 3_000)).head == 3
    assert findings(store, "warn", "damage") == []


@pytest.fixture
def small_disk(tmp_path: Path):
    """A real disk of 256 KiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(mounted)]
    if os.getuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield mounted
    subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_on_a_full_disk_nothing_is_torn_readings_work_and_deletes_make_room(small_disk: Path) -> None:
    store = JsonlStore(small_disk / "folder")
    store.commit([Create(ME, f"s{no}", entries=(draft("x" * 3_000),)) for no in range(8)])
    stored = {f"s{no}": 1 for no in range(8)}
    full = 0
    for no in range(400):
        batch = [Append(ME, f"s{each}", (draft("x" * (500 + no)), draft())) for each in (no % 8, (no + 1) % 8)]
        try:
            for op, result in zip(batch, store.commit(batch), strict=True):
                assert result.new == 2
                stored[op.session] += 2
        except DiskFull:
            full += 1
    assert full
    again = JsonlStore(small_disk / "folder", read_only=True)
    for session, count in stored.items():
        assert [entry.seq for entry in again.read(ME, session)] == list(range(1, count + 1))
    assert findings(again, "damage") == []
    filler = small_disk / "filler"
    with pytest.raises(OSError):
        filler.write_bytes(b"x" * 300_000)
    do(store, Erase(ME, "s0"))
    with pytest.raises(NotFound):
        store.get(ME, "s0")
    filler.unlink()
    assert add(store, session="s1").new == 1

"""The JSON-lines store when files are torn, damaged or shared with others, and when the disk fails."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from jsonl_folder import ME, add, all_bytes, begin, do, draft, file_of, findings, fork, ids
from segue.errors import Corrupt, DiskFull, NotFound, OutcomeUnknown, ReadOnly, SegueError
from segue.model import ScopeKey
from segue.store import Append, Create, Erase, Filter, Fork, Hollow, Release, Renew, Take, Update
from segue.stores._jsonl_disk import Disk
from segue.stores.jsonl import JsonlStore

FULL = bool(os.environ.get("SEGUE_TORTURE"))
FLIPS = 1_000 if FULL else 150
MINUTE = 60_000_000


@pytest.fixture
def store(tmp_path: Path) -> JsonlStore:
    return JsonlStore(tmp_path / "folder")


def fresh(store: JsonlStore) -> JsonlStore:
    """Another handle, that has read nothing yet."""
    return JsonlStore(store._folder.path)


# Torn ends.


def test_a_batch_cut_anywhere_is_not_there_and_set_aside_whole(store: JsonlStore) -> None:
    file = begin(store, "s", draft(id="first"))
    whole = file.stat().st_size
    add(store, draft("二" * 20), draft(), draft(body=b"\xff\n", format="raw"))
    data = file.read_bytes()
    feeds = [at + 1 for at, byte in enumerate(data) if byte == 10 and at > whole]
    sizes = range(whole + 1, len(data) - 1)
    for size in sizes if FULL else sorted({*sizes[::17], *feeds[:-1], *(at - 1 for at in feeds[:-1])}):
        file.write_bytes(data[:size])
        again = fresh(store)
        assert ids(again) == ["first"], size
        assert add(again, draft(id="next")).head == 2
        (aside,) = file.parent.glob("*.torn-*")
        assert aside.read_bytes() == data[whole:size]
        assert file.read_bytes()[:whole] == data[:whole]
        aside.unlink()
        again.close()


def test_a_batch_without_only_its_last_line_feed_is_whole(store: JsonlStore) -> None:
    file = begin(store, "s", draft(id="first"))
    add(store, draft(id="second"), draft(id="third"))
    data = file.read_bytes()
    for damaged in (data[:-1], data[:-1] + b"\x0b"):
        file.write_bytes(damaged)
        assert ids(fresh(store)) == ["first", "second", "third"]
        again = fresh(store)
        assert add(again, draft(id="fourth")).head == 4
        assert ids(fresh(store)) == ["first", "second", "third", "fourth"]
        assert file.read_bytes()[: len(data)] == data


@pytest.mark.parametrize("nuls", [1, 15, 512, 5_000])
def test_a_run_of_nuls_at_the_end_is_a_torn_write(store: JsonlStore, nuls: int) -> None:
    file = begin(store, "s", draft(id="first"))
    with file.open("ab") as opened:
        opened.write(bytes(nuls))
    again = fresh(store)
    assert [text for text in findings(again, "warn") if "torn" in text]
    assert ids(again) == ["first"]
    assert add(again).head == 2
    assert findings(again, "damage") == []


@pytest.mark.parametrize("sectors", range(1, 8))
def test_a_batch_of_which_some_sectors_never_came_is_a_torn_write(store: JsonlStore, sectors: int) -> None:
    file = begin(store, "s", draft(id="first"))
    whole = file.stat().st_size
    add(store, *(draft("x" * 300) for _ in range(6)))
    data = bytearray(file.read_bytes())
    first = (whole // 512 + sectors) * 512
    data[first : first + 512] = bytes(len(data[first : first + 512]))
    file.write_bytes(data)
    assert ids(fresh(store)) == ["first"]


def test_a_session_torn_in_the_making_is_not_there_and_may_be_made(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft())
    data = file.read_bytes()
    for size in (0, 1, 100, data.index(b"\n") + 1, len(data) - 3):
        file.write_bytes(data[:size])
        again = fresh(store)
        with pytest.raises(NotFound):
            again.get(ME, "s")
        assert again.page(ME, Filter(), None, 10).sessions == ()
        begin(again, "s", draft(id="mine"))
        assert ids(fresh(store)) == ["mine"]


def test_what_was_set_aside_is_reported(store: JsonlStore) -> None:
    file = begin(store)
    with file.open("ab") as opened:
        opened.write(b'{"seq":1,"id":')
    add(fresh(store))
    assert [report for report in store.check(deep=False) if ".torn-" in report.text and report.level == "warn"]


# Damage.


def damage(file: Path, chance: random.Random) -> tuple[bytes, int]:
    """Flip a bit; the bytes before, and where."""
    data = file.read_bytes()
    at = chance.randrange(len(data))
    flipped = bytearray(data)
    flipped[at] ^= 1 << chance.randrange(8)
    file.write_bytes(flipped)
    return data, at


def test_each_flipped_bit_is_reported_and_costs_its_own_line_only(store: JsonlStore) -> None:
    """Nothing is ever read that was not written; what is not touched stays readable."""
    file = begin(store, "s", draft(), draft(body=b"\xff\0\n", format="raw"), title="a title")
    add(store, draft("x" * 500, refs=("cut",)), draft())
    do(store, Update(ME, "s", {"title": "another"}))
    do(store, Take(ME, "s", "run-1", MINUTE, entries=(draft(),)))
    add(store, draft(kind="effect"))
    before = {entry.seq: entry for entry in store.read(ME, "s")}
    info = store.get(ME, "s")
    chance = random.Random(7)
    for _ in range(FLIPS):
        data, at = damage(file, chance)
        again = fresh(store)
        line = data.count(b"\n", 0, at)
        lost = [seq for seq in before if _read(again, seq) != before[seq]]
        assert len(lost) <= 2, at  # two where the line feed between them is damaged
        for seq in lost:
            with pytest.raises(Corrupt) as caught:
                again.read(ME, "s", after=seq - 1, upto=seq)
            assert (caught.value.session, caught.value.seq) == ("s", seq)
        try:
            shown = again.get(ME, "s")
            # What a lost entry said of the last activity is lost with it.
            assert shown == (replace(info, active_at=shown.active_at) if lost else info)
        except Corrupt as error:
            assert error.session == "s"
        reported = [report for report in again.check(deep=True) if report.level == "damage"]
        is_feed = data[at : at + 1] == b"\n"
        assert reported or (is_feed and not lost), f"byte {at} in line {line} was damaged and nothing said so"
        assert {report.seq for report in reported if report.seq} == set(lost), at
        again.close()
        file.write_bytes(data)


def _read(store: JsonlStore, seq: int) -> object:
    try:
        (entry,) = store.read(ME, "s", after=seq - 1, upto=seq)
    except (Corrupt, ValueError):
        return None
    return entry


def spoil(file: Path, old: bytes, new: bytes) -> None:
    data = file.read_bytes()
    assert data.count(old) == 1
    file.write_bytes(data.replace(old, new))


def test_a_damaged_line_feed_loses_nothing(store: JsonlStore) -> None:
    file = begin(store, "s", draft(id="one"), draft(id="two"))
    add(store, draft(id="three"))
    do(store, Update(ME, "s", {"title": "a title"}))
    add(store, draft(id="four"))
    data = file.read_bytes()
    feeds = [at for at, byte in enumerate(data) if byte == 10]
    for at in feeds:
        file.write_bytes(data[:at] + b"\x0b" + data[at + 1 :])
        again = fresh(store)
        assert ids(again) == ["one", "two", "three", "four"], at
        assert again.get(ME, "s").title == "a title"
        assert at == feeds[-1] or [text for text in findings(again, "damage") if "line feed" in text]


def test_a_body_that_is_one_of_our_lines_is_a_body(store: JsonlStore) -> None:
    """Somebody reads a session's file and says it to the model: nothing of it is taken for a line."""
    file = begin(store, "s", draft(id="one"), draft(id="two"))
    for _ in range(3):
        for line in file.read_bytes().splitlines():
            do(store, Append(ME, "s", (draft(body=line), draft(body=b'{"a":' + line + b"}"))))
    before = store.read(ME, "s")
    assert fresh(store).read(ME, "s") == before
    assert findings(store, "damage") == []


def test_a_damaged_body_keeps_its_id_and_the_session_goes_on(store: JsonlStore) -> None:
    entry = draft("hello")
    file = begin(store, "s", draft(), entry, draft())
    spoil(file, b"hello", b"jello")
    again = fresh(store)
    assert do(again, Append(ME, "s", (entry,))).seqs == (2,)
    assert add(again).head == 4
    assert [each.seq for each in again.read(ME, "s", after=2)] == [3, 4]


def test_a_damaged_id_stops_appends_since_the_next_may_be_its_retry(store: JsonlStore) -> None:
    entry = draft(id="precious")
    file = begin(store, "s", draft(), entry, draft())
    spoil(file, b'"id":"precious"', b'"id":"precioux"')
    again = fresh(store)
    with pytest.raises(Corrupt) as caught:
        do(again, Append(ME, "s", (entry,)))
    assert caught.value.seq == 2
    fork(again, "f", "s", 1)
    assert add(again, session="f").head == 2


def test_a_damaged_entry_is_not_passed_over_when_a_ref_is_looked_up(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft(refs=("cut",)), draft())
    spoil(file, b'"refs":["cut"]', b'"refs":["cup"]')
    with pytest.raises(Corrupt):
        fresh(store).by_ref(ME, "cut", session="s")
    with pytest.raises(Corrupt):
        fresh(store).by_ref(ME, "cut")
    assert fresh(store).by_ref(ME, "cut", session="s", after=2) == []


def test_a_damaged_end_keeps_its_number(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft(id="last"))
    spoil(file, b'"id":"last"', b'"id":"lasd"')
    again = fresh(store)
    assert [entry.seq for entry in again.read(ME, "s", upto=1)] == [1]
    with pytest.raises(Corrupt) as caught:
        again.read(ME, "s")
    assert caught.value.seq == 2
    assert not list(file.parent.glob("*.torn-*"))


def test_damaged_attributes_are_not_guessed_and_the_entries_stay(store: JsonlStore) -> None:
    file = begin(store, "s")
    do(store, Update(ME, "s", {"title": "a title"}))
    add(store, draft(id="one"), draft(id="two"))
    spoil(file, b"a title", b"b title")
    again = fresh(store)
    assert ids(again) == ["one", "two"]
    for act in (lambda: again.get(ME, "s"), lambda: add(again), lambda: do(again, Update(ME, "s", {"title": "x"}))):
        with pytest.raises(Corrupt) as caught:
            act()
        assert caught.value.session == "s"
    data = file.read_bytes()
    file.write_bytes(data.replace(data.splitlines(keepends=True)[1], b""))  # as the error advises
    assert (fresh(store).get(ME, "s").title, add(fresh(store)).head) == ("", 3)
    file.write_bytes(data)
    assert do(fresh(store), Erase(ME, "s")).entries == 2


def test_later_attributes_heal_earlier_ones(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), title="first")
    do(store, Update(ME, "s", {"title": "second"}))
    do(store, Take(ME, "s", "run-1", MINUTE))
    do(store, Update(ME, "s", {"title": "third"}))
    add(store, draft(kind="effect"))
    spoil(file, b"second", b"sekond")
    again = fresh(store)
    assert again.get(ME, "s").title == "third"
    assert [text for text in findings(again, "damage") if "damaged" in text]


def test_one_damaged_session_hides_no_other(store: JsonlStore) -> None:
    begin(store, "other", draft())
    spoil(begin(store, "s", title="a title"), b"a title", b"b title")
    again = fresh(store)
    assert again.get(ME, "other").head == 1
    assert "other" in [info.id for info in again.page(ME, Filter(), None, 10).sessions]
    assert add(again, session="other").head == 2
    assert again.find(ME, "nothing") is None


def test_a_lost_line_is_damage(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft(), draft())
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:2] + lines[3:]))
    again = fresh(store)
    with pytest.raises(Corrupt) as caught:
        again.read(ME, "s")
    assert caught.value.seq == 2
    assert again.read(ME, "s", after=2)[0].seq == 3


def test_a_file_cut_between_two_lines_is_noticed_by_who_knew_more(store: JsonlStore) -> None:
    file = begin(store, "s", draft(id="one"))
    add(store, draft(id="two"))
    whole = file.read_bytes()
    add(store, draft(id="three"))
    other = fresh(store)
    add(other, session="s")
    other.close()  # writes the index file
    os.truncate(file, len(whole))
    assert ids(store) == ["one", "two"]
    for act in (lambda: store.get(ME, "s"), lambda: add(store)):
        with pytest.raises(Corrupt):
            act()
    (report,) = [each for each in fresh(store).check(deep=True) if each.level == "damage"]
    assert (report.session, report.seq) == ("s", 3)


def test_a_file_that_is_gone_is_noticed_by_who_knew_it(store: JsonlStore) -> None:
    file = begin(store, "s", draft())
    store.close()
    file.unlink()
    assert [text for text in findings(fresh(store), "damage") if "gone" in text]


def test_histories_merged_by_hand_are_damage_where_they_contradict(store: JsonlStore, tmp_path: Path) -> None:
    file = begin(store, "s", draft())
    base = file.read_bytes()
    add(store, draft(id="ours"))
    ours = file.read_bytes()
    file.write_bytes(base)
    again = fresh(store)
    add(again, draft(id="theirs"))
    file.write_bytes(ours + file.read_bytes()[len(base) :])
    merged = fresh(store)
    with pytest.raises(Corrupt) as caught:
        merged.read(ME, "s")
    assert caught.value.seq == 2
    assert [text for text in findings(merged, "damage") if "two entries 2" in text]


def test_a_lost_parent_is_damage_of_what_was_inherited_only(store: JsonlStore) -> None:
    file = begin(store, "s", draft(), draft())
    fork(store, "f", "s", 2)
    add(store, draft(id="own"), session="f")
    file.unlink()
    again = fresh(store)
    with pytest.raises(Corrupt) as caught:
        again.read(ME, "f")
    assert (caught.value.session, caught.value.seq) == ("f", 1)
    assert [entry.id for entry in again.read(ME, "f", after=2)] == ["own"]
    assert [text for text in findings(again, "damage") if "'s'" in text]


# Other programs.


@pytest.mark.parametrize("line", [b"hello\n", b'{"type":"user","text":"hi"}\n', b"\n", b"\xff\xfe\n", b"[1,2]\n"])
def test_lines_of_other_programs_are_reported_kept_and_passed_over(store: JsonlStore, line: bytes) -> None:
    file = begin(store, "s", draft(id="one"))
    for no in range(2, 4):
        with file.open("ab") as opened:
            opened.write(line)
        assert add(store, draft(id=f"more-{no}")).head == no
    assert ids(fresh(store)) == ["one", "more-2", "more-3"]
    assert len([text for text in findings(store, "warn") if "not Segue's" in text]) == 2
    assert findings(store, "damage") == []
    do(store, Hollow(ME, "s", (1,)))
    assert file.read_bytes().splitlines(keepends=True).count(line) == 2
    assert [entry.seq for entry in fresh(store).read(ME, "s")] == [1, 2, 3]
    assert fresh(store).get(ME, "s").head == 3


def test_files_of_other_programs_are_reported_and_left_alone(store: JsonlStore) -> None:
    file = begin(store, "s", draft())
    (file.parent / "notes.txt").write_text("mine")
    (file.parent / "other.jsonl").write_text('{"a":1}\n')
    again = fresh(store)
    assert [info.id for info in again.page(ME, Filter(), None, 10).sessions] == ["s"]
    assert [text for text in findings(again, "warn") if "notes.txt" in text]
    assert (file.parent / "other.jsonl").read_text() == '{"a":1}\n'


def test_a_line_that_never_ends_is_passed_over(store: JsonlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segue.stores._jsonl_table.LINE_MAX_BYTES", 100_000)
    monkeypatch.setattr("segue.stores._jsonl_table._PIECE_BYTES", 10_000)
    file = begin(store, "s", draft(id="one"))
    with file.open("ab") as opened:
        opened.write(b"x" * 500_000 + b"\n")
    again = fresh(store)
    assert add(again, draft(id="two")).head == 2
    assert ids(fresh(store)) == ["one", "two"]


# Failing disks.


class FailingDisk(Disk):
    """Fails the n-th of its calls, in the way it is told; counts them else."""

    def __init__(self, fails: str = "", at: int = -1, code: int = errno.ENOSPC, *, repeats: bool = False) -> None:
        self.fails, self.at, self.code, self.repeats, self.calls = fails, at, code, repeats, 0

    def _call(self, name: str) -> bool:
        """Whether this call is to fail."""
        if name != self.fails and self.fails != "any":
            return False
        self.calls += 1
        return self.calls == self.at or (self.repeats and self.calls > self.at > 0)

    def write(self, file: int, data: memoryview) -> int:
        if self._call("write"):
            if len(data) > 10:
                os.write(file, data[: len(data) // 2])  # the disk took half of it
            raise OSError(self.code, os.strerror(self.code))
        return super().write(file, data)

    def sync(self, file: int) -> None:
        if self._call("sync"):
            raise OSError(self.code, os.strerror(self.code))
        super().sync(file)

    def rename(self, old: str, new: str, at: int) -> None:
        if self._call("rename"):
            raise OSError(self.code, os.strerror(self.code))
        super().rename(old, new, at)

    def open(self, name: str, flags: int, at: int) -> int:
        if self._call("open"):
            raise OSError(self.code, os.strerror(self.code))
        return super().open(name, flags, at)


class TricklingDisk(Disk):
    """Takes a few bytes at a time."""

    def write(self, file: int, data: memoryview) -> int:
        return super().write(file, data[:7])


def test_a_disk_that_takes_little_at_a_time_gets_all_of_it(tmp_path: Path) -> None:
    store = JsonlStore(tmp_path, disk=TricklingDisk())
    begin(store, "s", draft(id="a"), draft(id="b"))
    assert ids(fresh(store)) == ["a", "b"]


@pytest.mark.parametrize("at", range(1, 5))
def test_a_full_disk_refuses_the_whole_commit_and_leaves_nothing(store: JsonlStore, at: int) -> None:
    for session in ("a", "b"):
        begin(store, session, draft())
    before = {path: path.read_bytes() for path in Path(store._folder.path).rglob("*.jsonl")}
    disk = FailingDisk("write", at)
    full = JsonlStore(store._folder.path, disk=disk)
    ops = [
        Append(ME, "a", (draft(),)),
        Append(ME, "b", (draft(), draft())),
        Create(ME, "c"),
        Create(ScopeKey("x", "y"), "d"),
    ]
    with pytest.raises(DiskFull):
        full.commit(ops)
    assert {path: path.read_bytes() for path in Path(store._folder.path).rglob("*.jsonl")} == before
    assert [result.id if hasattr(result, "id") else result.new for result in full.commit(ops)] == [1, 2, "c", "d"]
    assert findings(full, "damage") == []


def test_a_full_disk_refuses_what_was_to_come_and_not_what_was_done(store: JsonlStore) -> None:
    begin(store, "s", draft(), draft())
    full = JsonlStore(store._folder.path, disk=FailingDisk("write", 4))
    # Hollowing writes the file anew, so the append before it is on the disk when the one behind it is refused.
    results = full.commit([Append(ME, "s", (draft(),)), Hollow(ME, "s", (1,)), Append(ME, "s", (draft(),))])
    assert [type(result).__name__ for result in results][:1] == ["Appended"]
    assert isinstance(results[-1], DiskFull) or isinstance(results[1], DiskFull)
    done = sum(isinstance(result, tuple) for result in results)
    assert fresh(store).get(ME, "s").head == 2 + done


@pytest.mark.parametrize("at", range(1, 4))
def test_after_a_failed_sync_the_outcome_is_unknown_and_the_handle_writes_no_more(store: JsonlStore, at: int) -> None:
    for session in ("a", "b", "c"):
        begin(store, session)
    entries = {session: draft() for session in ("a", "b", "c")}
    failing = JsonlStore(store._folder.path, disk=FailingDisk("sync", at, errno.EIO))
    failing._writer._proven.add(ME)
    ops = [Append(ME, session, (entry,)) for session, entry in entries.items()]
    with pytest.raises(OutcomeUnknown):
        failing.commit(ops)
    for _ in range(2):
        with pytest.raises(ReadOnly, match="open the store again"):
            add(failing, session="a")
    assert ids(failing, "a") == ids(fresh(store), "a")
    again = fresh(store)
    assert all(result.head == 1 for result in again.commit(ops))
    assert {session: ids(again, session) for session in entries} == {key: [each.id] for key, each in entries.items()}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("call", ["write", "sync", "rename", "open"])
def test_whatever_call_fails_in_a_rewrite_the_old_or_the_new_file_is_there(
    store: JsonlStore, call: str, code: int
) -> None:
    begin(store, "s", draft("secret"), draft())
    before = store.read(ME, "s")
    for at in range(1, 4):
        failing = JsonlStore(store._folder.path, disk=FailingDisk(call, at, code))
        try:
            do(failing, Hollow(ME, "s", (1,)))
        except SegueError:
            found = fresh(store).read(ME, "s")
            assert found == before or found[0].body is None
        assert findings(fresh(store), "damage") == []
        assert fresh(store).get(ME, "s").head == 2


class Killed(BaseException):
    """The process is killed; nothing of it runs on."""


class KilledDisk(Disk):
    """Kills its process at the n-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _call(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed

    def open(self, name: str, flags: int, at: int) -> int:
        self._call()
        return super().open(name, flags, at)

    def write(self, file: int, data: memoryview) -> int:
        self._call()
        return super().write(file, data)

    def sync(self, file: int) -> None:
        self._call()
        super().sync(file)

    def rename(self, old: str, new: str, at: int) -> None:
        self._call()
        super().rename(old, new, at)

    def unlink(self, name: str, at: int) -> None:
        self._call()
        super().unlink(name, at)


SECRET = "Zugangscode-4711"


def family(folder: Path) -> JsonlStore:
    """Three generations, each with entries of its own, one of them running, one with a torn end."""
    store = JsonlStore(folder)
    store.commit([Create(ME, f"x{no}", title="x") for no in range(16)])
    begin(store, "s", draft(f"{SECRET} shared"), draft(f"{SECRET} own"), title=SECRET)
    fork(store, "f", "s", 1)
    add(store, draft(f"{SECRET} f", id="of f"), session="f")
    fork(store, "g", "f", 2)
    do(store, Take(ME, "s", "run-1", MINUTE))
    do(
        store,
        Renew(
            ME,
            "s",
            "run-1",
            1,
            MINUTE,
        ),
    )
    with file_of(store).open("ab") as opened:
        opened.write(b'{"seq":3,"id":"' + SECRET.encode())
    add(fresh(store), draft(kind="effect"))
    store.close()
    return JsonlStore(folder)


def test_an_erasure_that_was_cut_short_anywhere_is_ended_by_the_next(tmp_path: Path) -> None:
    for at in range(0, 60, 1 if FULL else 3):
        folder = tmp_path / str(at)
        store = family(folder)
        disk = KilledDisk(10_000)
        killed = JsonlStore(folder, disk=disk)
        disk.left = at
        ended = False
        try:
            for session in ("s", "f", "g"):
                do(killed, Erase(ME, session))
            ended = True
        except Killed:
            pass
        store.close()
        again = JsonlStore(folder)
        for session in ("s", "f", "g"):
            if not _is_gone(again, session):  # then it is whole
                again.read(ME, session)
                assert again.get(ME, session).head == len(again.read(ME, session))
        assert findings(again, "damage") == [], at
        for session in ("g", "f", "s"):
            do(again, Erase(ME, session))
        assert SECRET.encode() not in all_bytes(folder), at
        assert len(again.page(ME, Filter(), None, 100).sessions) == 16
        if ended:
            return
    raise AssertionError("the erasure took more calls than were tried")


def _is_gone(store: JsonlStore, session: str) -> bool:
    try:
        store.get(ME, session)
    except NotFound:
        return True
    return False


def test_a_process_that_is_killed_anywhere_leaves_each_operation_done_or_not(tmp_path: Path) -> None:
    for at in range(60):
        folder = tmp_path / str(at)
        store = JsonlStore(folder)
        begin(store, "s", draft(id="first"))
        do(store, Take(ME, "s", "run-1", MINUTE))
        disk = KilledDisk(10_000)
        killed = JsonlStore(folder, disk=disk)
        disk.left = at
        ops = [
            Append(ME, "s", (draft(id="a", kind="effect"), draft(id="b", kind="effect"))),
            Release(ME, "s", "run-1", 1),
            Fork(Create(ME, "f"), "s", 1),
            Create(ME, "new", entries=(draft(id="c"),)),
        ]
        try:
            killed.commit(ops)
            done = True
        except Killed:
            done = False
        again = fresh(store)
        assert ids(again) in (["first"], ["first", "a", "b"]), at
        for session, found in (("f", ["first"]), ("new", ["c"])):
            assert _is_gone(again, session) or ids(again, session) == found, at
        assert findings(again, "damage") == [], at
        assert all(not isinstance(result, SegueError) for result in again.commit(ops)), at
        assert (ids(again), again.get(ME, "s").lease) == (["first", "a", "b"], None)
        if done:
            return
    raise AssertionError("the commit took more calls than were tried")

# ruff: noqa: F401, F811 - pytest finds fixtures by their names
"""Every command on real files: what it prints for people and programs, what it does, how it ends."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import apsw
import pytest

import segue
from cli_runs import STEERING, age, alone, cli, damage, db, me, on_a_terminal, turn
from segue.cli.commands import COMMANDS
from segue.cli.machine import ENTRY_FIELDS, SESSION_FIELDS

# ls


def test_ls_shows_one_line_a_session_last_active_first(cli, me):
    old = turn(me.create(title="华东八月", tags=["sales"]))
    new = me.create(title="Second")
    ran = cli("ls")
    head, first, second = ran.out.splitlines()
    assert ran.code == 0
    assert head.split() == ["ID", "STATUS", "ACTIVE", "ENTRIES", "TOKENS", "TITLE"]
    assert first.split()[:2] == [new.id[-8:], "idle"]
    assert second.endswith("4    3.2k  华东八月  #sales")
    assert second.startswith(old.id[-8:])


def test_ls_shows_where_a_fork_comes_from(cli, me):
    parent = turn(me.create(title="A"))
    parent.fork(2, title="B")
    assert f"B  fork of {parent.id[-8:]} at 2" in cli("ls").out


def test_ls_aligns_wide_characters_and_fits_the_screen(me):
    from segue.cli.text import width

    for title in ("华东八月销售额下降分析" * 4, "plain " * 30, "x"):
        me.create(title=title, tags=["long-tag-number-one", "two"])
    received, _ = on_a_terminal("ls", columns=80)
    rows = re.sub("\x1b\\[[0-9;]*m", "", received).splitlines()
    assert all(width(row) <= 80 for row in rows)
    assert len({width(row[: row.index(title)]) for row, title in zip(rows, ("TITLE", "x", "plain", "华东"))}) == 1


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_long_title_gives_way_to_what_tells_a_fork_from_its_parent(me, columns):
    fork = me.create(title="East China: the August decline " * 4, tags=["q3"]).fork(title="East China: " * 9)
    received, _ = on_a_terminal("ls", columns=columns)
    shown = re.sub("\x1b\\[[0-9;]*m", "", received).splitlines()[1]
    assert (f"fork of {fork.info.parent.session[-8:]}" in shown, "East" in shown) == (True, True)
    assert "#q3" in received


def test_on_a_narrow_terminal_ls_leaves_columns_out(me):
    me.create(title="East China")
    assert "just now" in on_a_terminal("ls", columns=40)[0]
    heads = [re.sub("\x1b\\[[0-9;]*m", "", on_a_terminal("ls", columns=n)[0]).split()[:6] for n in (40, 80)]
    assert heads[0][2:5] == ["ACTIVE", "TITLE", me.latest().id[-8:]]
    assert heads[1][2:] == ["ACTIVE", "N", "TOK", "TITLE"]


def test_in_a_pipe_nothing_is_cut(cli, me, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    me.create(title="plain " * 30, tags=["a" * 50])
    assert "plain " * 29 + "plain  #" + "a" * 50 in cli("ls").out


def test_ls_filters(cli, me):
    kept = me.create(title="kept", tags=["a"], key="ticket-1")
    me.create(title="other").end()
    for options in (["--tag", "a"], ["--key", "ticket-"], ["--status", "idle"]):
        assert [line["id"] for line in cli("ls", "--json", *options).lines] == [kept.id]
    assert cli("ls", "--json", "--since", "1h", "--until", "2030-01-01").lines != []
    assert cli("ls", "--json", "--until", "1h").lines == []
    fork = kept.fork(0)
    assert [line["id"] for line in cli("ls", "--json", "--forks-of", "key:ticket-1").lines] == [fork.id]


def test_ls_all_shows_archived_and_unlisted_sessions(cli, me):
    me.create(title="sub", listed=False)
    me.create(title="put away").archive()
    assert cli("ls", "--json").lines == []
    assert {line["title"] for line in cli("ls", "--json", "--all").lines} == {"sub", "put away"}


def test_ls_says_when_there_are_more(cli, me):
    for _ in range(3):
        me.create()
    ran = cli("ls", "--limit", "2")
    assert len(ran.out.splitlines()) == 3
    assert "more sessions than these 2" in ran.err
    assert cli("ls", "--limit", "3").err == ""
    assert cli("ls", "--limit", "0").code == 2


def test_ls_for_programs_shows_all_of_them(cli, me):
    for _ in range(25):
        me.create()
    assert len(cli("ls", "--json").lines) == 25


def test_ls_without_sessions_names_those_who_have_some(cli, db):
    db.scope("acme", "lin").create()
    ran = cli("ls")
    assert ran.code == 0
    assert "no sessions of default/local" in ran.out
    assert "--tenant acme --user lin" in ran.out


# show


def test_show_reads_as_a_conversation(cli, me):
    turn(me.create(title="East China"))
    out = cli("show", "latest").out
    for part in ("East China", "4 entries", "user", "Why did sales fall?", "[thinking, 10 characters]", "I look.",
                 '→ query(sql: "SELECT\\n1")', "← query: row", "more characters", "Volume fell by 9 %."):  # fmt: skip
        assert part in out
    assert out.count("row") == 6


def test_show_full_shows_everything(cli, me):
    turn(me.create())
    out = cli("show", "latest", "--full").out
    assert out.count("row") == 500
    assert "let me see" in out


def test_show_tells_everything_else_that_the_log_holds(cli, me):
    session = turn(me.create())
    kinds = {
        "note": ({"text": "18 h passed", "facts": {}}, "18 h passed"),
        "observation": ({"source": "warehouse:sales", "kind": "watermark", "version": "118"}, "watermark 118"),
        "effect": (
            {"effect": "e", "name": "publish", "source": "wiki:8", "phase": "started"},
            "publish on wiki:8 started",
        ),
        "cut": ({"upto": 2, "summary": {"role": "user", "content": "in short"}}, "entries 1 to 2 are summarised"),
        "config": ({"config": {"name": "analyst", "model": "m-1"}, "action": "pinned"}, "pinned analyst m-1"),
        "x.opaque": ({"a": [1]}, '{"a": [1]}'),
    }
    for kind, (body, _) in kinds.items():
        session.append(body, kind=kind, format="segue")
    session.append(b"\x00\xff torn", kind="x.line", format="raw")
    out = cli("show", "latest").out
    for _, told in kinds.values():
        assert told in out
    assert "7 B of raw bytes" in out


def test_show_marks_what_was_taken_back_and_what_was_erased(cli, me):
    session = turn(me.create())
    session.append({"seqs": [4]}, kind="retract", format="segue", refs=("retract",))
    session.hollow(1)
    out = cli("show", "latest").out
    assert re.search(r"^ +4 .*retracted$", out, re.MULTILINE)
    assert re.search(r"^ +1 .*content erased$", out, re.MULTILINE)
    assert "Why did sales fall?" not in out


def test_show_picks_entries(cli, me):
    session = turn(me.create())
    session.append({"text": "n"}, kind="note", format="segue")

    def seqs(*options):
        return [line["seq"] for line in cli("show", "latest", "--json", *options).lines]

    assert seqs() == [1, 2, 3, 4, 5]
    assert seqs("--last", 2) == [4, 5]
    assert seqs("--last", 0) == []
    assert seqs("--kinds", "message", "--last", 2) == [3, 4]
    assert seqs("--kinds", "note,cut") == [5]
    assert seqs("--after", 1, "--upto", 3) == [2, 3]
    assert seqs("--upto", 99) == [1, 2, 3, 4, 5]
    assert cli("show", "latest", "--last", "-1").code == 2


def test_show_raw_gives_the_exact_bytes(me):
    session = me.create()
    bodies = [b'{"role": "user",\n  "content": "\xe5\x8d\x8e 1.10"}', b'{"b":1,"a":[2.50]}']
    session.append(bodies[0])
    session.append(bodies[1], kind="x", format="y")
    session.append(b"\x00\x1b\xff", kind="x", format="raw")
    ran = subprocess.run([sys.executable, "-m", "segue", "show", "latest", "--raw"], capture_output=True, check=True)
    assert ran.stdout == b"\n".join([*bodies, b"\x00\x1b\xff", b""])


def test_an_entry_has_one_json_shape(cli, me):
    session = turn(me.create())
    session.append(b"\xff", kind="x", format="raw")
    session.hollow(1)
    lines = cli("show", "latest", "--json").lines
    assert all(list(line) == list(ENTRY_FIELDS) for line in lines)
    assert (lines[0]["hollow"], lines[0]["body"]) == (True, None)
    assert lines[3]["usage"]["input"] == 3_000
    assert (lines[4]["body"], lines[4]["body_base64"]) == (None, "/w==")


def test_show_names_the_tool_of_a_call_that_is_not_shown(cli, me):
    turn(me.create())
    assert "← query: row" in cli("show", "latest", "--last", 2).out
    stray = {"type": "tool_result", "tool_use_id": "no\x00where" + "x" * 300, "content": "late"}
    me.create().append({"role": "user", "content": [stray]})
    assert ": late" in cli("show", "latest").out


def test_show_refuses_before_it_shows_anything(cli, me):
    turn(me.create())
    for options in (["--last", "-3"], ["--raw", "--json"]):
        ran = cli("show", "latest", *options)
        assert (ran.code, ran.out) == (2, "")


# Which session


def test_a_session_is_found_by_id_part_key_or_latest(cli, me):
    session = me.create(key="ticket-1")
    me.create(id="my-session")
    for given in (session.id, f"id:{session.id}", session.id[:30], session.id[-8:], "key:ticket-1"):
        assert cli("title", given, "t", "--json").lines[0]["id"] == session.id
    assert cli("title", "latest", "t", "--json").lines[0]["id"] == "my-session"
    assert cli("title", "my-s", "t").code == 0


def test_a_part_that_fits_several_lists_them(cli, me):
    ids = {me.create(id=f"same-{n}").id for n in range(3)}
    ran = cli("show", "same")
    assert ran.code == 2
    assert all(id in ran.err for id in ids)
    told = json.loads(cli("show", "same", "--json").err)
    assert (told["error"], set(told["candidates"]), told["exit_code"]) == ("Ambiguous", ids, 2)


def test_a_full_id_wins_over_a_part(cli, me):
    me.create(id="abcd")
    me.create(id="abcde")
    assert cli("show", "abcd").code == 0


@pytest.mark.parametrize("given", ["nosuchid", "key:nope", "id:abcd", "\x1b[31m", "x" * 300, "latest"])
def test_what_is_not_there_is_no_such_session(cli, db, given):
    ran = cli("show", given)
    assert ran.code == 3
    assert ran.err.startswith("segue: no ")
    assert not STEERING.search(ran.err)
    assert json.loads(cli("show", given, "--json").err)["error"] == "NotFound"


def test_an_id_that_reads_as_a_word_is_an_id(cli, me):
    me.create()
    assert "no such session of default/local: 'id:latest'" in cli("show", "id:latest").err
    assert cli("show", me.create(id="latest").id).code == cli("show", "id:latest").code == 0


def test_a_part_of_an_id_has_four_characters_or_more(cli, db):
    assert cli("show", "abc").code == 2


def test_another_owners_session_is_not_there(cli, db):
    session = db.scope("acme", "lin").create(key="k")
    for given in (session.id, session.id[-8:], "key:k", "latest"):
        assert cli("show", given).code == 3
        assert cli("rm", given, "--yes").code == 3
    assert cli("show", session.id, "--tenant", "acme", "--user", "lin").code == 0


# Store and owner


def test_store_and_owner_come_from_options_or_the_environment(cli, tmp_path, monkeypatch):
    with segue.open("sqlite:///other.db") as db:
        db.scope("acme", "lin").create(title="theirs")
    owner = ["--tenant", "acme", "--user", "lin"]
    for store in ("sqlite:///other.db", "other.db", str(tmp_path / "other.db"), f"sqlite:///{tmp_path / 'other.db'}"):
        assert "theirs" in cli("ls", "--store", store, *owner).out
        assert "theirs" in cli("--store", store, *owner, "ls").out
    for name, value in (("STORE", "other.db"), ("TENANT", "acme"), ("USER", "lin")):
        monkeypatch.setenv(f"SEGUE_{name}", value)
    assert "theirs" in cli("ls").out
    assert "no sessions of acme/wu" in cli("ls", "--user", "wu").out


WORDS = {
    "title": ["xxxx", "y"],
    "ls": [],
    "resume": [],
    "sweep": [],
    "verify": [],
    "migrate": ["--apply"],
    "doctor": [],
}


@pytest.mark.parametrize("command", [c.name for c in COMMANDS if not c.makes and c.name != "convert"])
def test_no_command_makes_a_store(cli, tmp_path, command):
    (tmp_path / "empty.db").touch()
    (tmp_path / "folder").mkdir()
    for store in ("missing.db", "empty.db", "jsonl:missing", "jsonl:folder"):
        ran = cli(command, *WORDS.get(command, ["xxxx"]), "--store", store)
        assert (ran.code, f"no store at {store.removeprefix('jsonl:')}" in ran.out + ran.err) == (5, True)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty.db", "folder"]
    assert (tmp_path / "empty.db").stat().st_size == 0


def test_a_folder_of_something_else_is_left_alone(cli, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    for words in (["ls"], ["title", "xxxx", "y"]):
        assert cli(*words, "--store", "jsonl:folder").code == 2
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "notes.txt"]


def test_it_works_on_a_folder_of_json_lines(cli):
    with segue.open("jsonl:folder") as db:
        turn(db.scope().create(title="A"))
    for words in (
        ["ls"],
        ["show", "latest"],
        ["title", "latest", "B"],
        ["fork", "latest"],
        ["verify"],
        ["rm", "latest", "--yes"],
    ):
        assert cli(*words, "--store", "jsonl:folder").code == 0
    assert [line["title"] for line in cli("ls", "--json", "--store", "jsonl:folder").lines] == ["B"]


def test_what_a_killed_process_left_is_read(cli):
    code = "import os, segue; s = segue.open('sqlite:///segue.db').scope().create(title='left'); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False)
    assert Path("segue.db-wal").stat().st_size
    assert "left" in cli("ls").out
    assert cli("verify").code == 0
    assert cli("title", "latest", "found").code == 0


def test_commands_that_only_read_leave_the_file_as_it_is(cli, tmp_path):
    with segue.open("sqlite:///segue.db") as db:
        turn(db.scope().create())
    before = (tmp_path / "segue.db").read_bytes()
    for words in (["ls"], ["show", "latest"], ["resume"], ["verify"], ["doctor"]):
        assert cli(*words).code == 0
    assert (tmp_path / "segue.db").read_bytes() == before


@pytest.mark.parametrize(
    ("url", "code", "told"),
    [
        ("foo://x", 2, "names no store"),
        ("sqlite://x", 2, "sqlite:///relative.db"),
        ("..", 2, "name it jsonl:.."),
        ("jsonl:nowhere", 5, "no store at nowhere"),
        ("sqlite:///nowhere/x.db", 5, "no store at nowhere/x.db"),
    ],
)
def test_a_wrong_store_is_told_with_the_next_step(cli, url, code, told):
    ran = cli("ls", "--store", url)
    assert (ran.code, told in ran.err) == (code, True)
    assert len(ran.err.splitlines()) == 1


def test_files_that_are_no_store_are_told_and_left_alone(cli, tmp_path):
    (tmp_path / "text.db").write_text("hello " * 1_000)
    apsw.Connection(str(tmp_path / "other.db")).execute("CREATE TABLE t (a)")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert cli("ls", "--store", "text.db").code == 1
    assert cli("ls", "--store", "other.db").code == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_password_in_the_url_is_not_shown():
    from segue.cli.address import shown

    assert shown("postgresql://me:s3cret@host/db") == "postgresql://me:***@host/db"


# Changing


def test_every_change_is_made_and_printed(cli, me):
    session = turn(me.create(title="A"))
    for words, field, value in (
        (["title", session.id, "B"], "title", "B"),
        (["tag", session.id, "x", "y"], "tags", ["x", "y"]),
        (["tag", session.id, "z", "--remove", "x"], "tags", ["y", "z"]),
        (["pin", session.id], "pinned", True),
        (["pin", session.id, "--off"], "pinned", False),
        (["end", session.id], "status", "completed"),
        (["reopen", session.id], "status", "idle"),
        (["archive", session.id], "status", "archived"),
        (["restore", session.id], "status", "idle"),
    ):
        (line,) = cli(*words, "--json").lines
        assert list(line) == list(SESSION_FIELDS)
        assert line[field] == value
        assert cli("ls", "--json", "--all").lines[0] == line


def test_fork_shares_the_beginning(cli, me):
    parent = turn(me.create(title="A"))
    (line,) = cli("fork", parent.id, "--at", 2, "--title", "B", "--json").lines
    assert (line["entries"], line["title"], line["parent"]) == (
        2,
        "B",
        {"session": parent.id, "seq": 2, "link": "fork"},
    )
    assert cli("fork", parent.id, "--at", 99).code == 2
    assert parent.refresh().head == 4


def test_a_place_behind_the_head_is_told_in_the_words_of_the_command_line(cli, me):
    parent = turn(me.create())
    assert "--at must lie between 0 and the last entry, which is 4, not 99" in cli("fork", parent.id, "--at", 99).err


def test_what_is_told_of_a_change_is_what_became_of_the_session(cli, me):
    session = me.create(title="A")
    assert "title removed" in cli("title", session.id, "").out
    assert "title set" in cli("title", session.id, "B").out
    session.end()
    assert "reopened, idle" in cli("reopen", session.id).out


def test_several_sessions_change_or_none(cli, me):
    first, second = me.create(), me.create()
    assert cli("archive", first.id, "nosuchid").code == 3
    assert first.refresh().status == "idle"
    assert len(cli("archive", first.id, second.id, "--json").lines) == 2
    assert first.refresh().status == "archived"


def test_restore_takes_the_latest_archived_one(cli, me):
    session = me.create()
    session.archive()
    me.create()
    assert cli("restore", "latest", "--json").lines[0]["id"] == session.id
    assert "nothing to restore" in cli("restore", session.id).out
    assert "no session of default/local can be latest" in cli("restore", "latest").err


def test_what_is_refused_now_ends_with_four(cli, me):
    session = me.create()
    with session.run():
        ran = cli("archive", session.id)
        assert (ran.code, "is active on it; it ends by itself, or when its lease" in ran.err) == (4, True)
    session.archive()
    ran = cli("reopen", session.id)
    assert (ran.code, f"segue restore {session.id}" in ran.err) == (4, True)
    assert cli("resume", session.id).code == 4


def test_values_over_their_limit_end_with_two(cli, me):
    session = me.create()
    assert cli("title", session.id, "x" * 501).code == 2
    assert cli("tag", session.id, "a\x00b").code == 2
    assert session.refresh().title == ""


def test_rm_erases_for_good(cli, me):
    session = turn(me.create())
    fork = session.fork(2)
    (line,) = cli("rm", session.id, "--yes", "--json").lines
    assert line == {"id": session.id, "erased": 2, "shared": 2}
    assert cli("show", session.id).code == 3
    assert len(fork.read()) == 2


def test_rm_without_anybody_to_ask_needs_yes(cli, me):
    session = me.create()
    ran = cli("rm", session.id)
    assert (ran.code, "--yes" in ran.err) == (2, True)
    session.refresh()


def test_rm_asks_and_takes_no_for_an_answer(cli, me, monkeypatch):
    session = turn(me.create(title="precious"))
    session.fork()
    for answer, code in (("\n", 1), ("n\n", 1), ("", 1), ("y\n", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        ran = cli("rm", session.id)
        assert ran.code == code
        assert "precious  (4 entries, 1 session made from it)" in ran.err
    assert cli("show", session.id).code == 3


def test_rm_says_what_else_an_answer_would_end(cli, me, monkeypatch):
    fork = turn(turn(me.create(title="A")).fork(3, title="B"))
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    with fork.run():
        ran = cli("rm", fork.id)
    assert "B  (7 entries, 3 of them its parent's, which stay there, a run is active on it)" in ran.err
    with fork.run():
        assert "erased: 4 entries; a run was active on it" in cli("rm", fork.id, "--yes").out


class Terminal:
    """A person at a terminal who types one line."""

    def __init__(self, line):
        self.line = line

    def isatty(self):
        return True

    def readline(self):
        return self.line


# Upkeep


@pytest.mark.parametrize("words", [["sweep"], ["verify"], ["doctor"], ["migrate", "--plan"]])
def test_what_looks_at_all_owners_refuses_one(cli, me, monkeypatch, words):
    for owner in (["--tenant", "acme"], ["--user", "lin"]):
        for line in ([*words, *owner], [*owner, *words]):
            ran = cli(*line)
            assert (ran.code, f"{words[0]} looks at all owners" in ran.err) == (2, True)
    assert "--tenant NAME" not in cli(words[0], "--help").out
    monkeypatch.setenv("SEGUE_TENANT", "acme")
    monkeypatch.setenv("SEGUE_USER", "lin")
    assert cli(*words).code == 0


def test_sweep_says_what_it_would_do_and_does_it(cli, me):
    due = me.create(idle=timedelta(days=1), title="due")
    kept = me.create(idle=timedelta(days=1), pinned=True)
    old = me.create()
    old.archive()
    age("segue.db", days=40)
    dry = cli("sweep", "--dry-run", "--json").lines
    assert {(line["action"], line["id"], line["dry_run"]) for line in dry} == {
        ("archived", due.id, True),
        ("erased", old.id, True),
    }
    assert due.refresh().status == "idle"
    assert "1 session archived, 0 erased" in cli("sweep", "--purge-after", "60d").out
    assert "0 sessions archived, 1 erased" in cli("sweep").out
    assert (due.refresh().status, kept.refresh().status) == ("archived", "idle")
    assert cli("sweep", "--purge-after", "soon").code == 2


def test_verify_finds_nothing_where_nothing_is_wrong(cli, me):
    turn(me.create())
    ran = cli("verify")
    assert (ran.code, "no damage" in ran.out) == (0, True)
    assert cli("verify", "--quiet").out == ""


def test_verify_finds_damage(cli, me):
    session = turn(me.create())
    damage("segue.db", 3)
    ran = cli("verify", "--quiet")
    assert (ran.code, "damage" in ran.out, session.id in ran.out) == (1, True, True)
    found = [line for line in cli("verify", "--json").lines if line["level"] == "damage"]
    assert (found[0]["session"], found[0]["seq"], found[0]["user"]) == (session.id, 3, "local")


def test_show_shows_what_is_healthy_around_the_damage(cli, me):
    turn(me.create())
    damage("segue.db", 3)
    ran = cli("show", "latest")
    assert ran.code == 1
    assert "Why did sales fall?" in ran.out
    assert "damaged" in ran.out
    assert "Volume fell by 9 %." in ran.out
    lines = cli("show", "latest", "--json").lines
    assert [line["seq"] for line in lines] == [1, 2, 3, 4]
    assert list(lines[2]) == ["seq", "damage"]
    assert "--raw" not in cli("show", "latest", "--raw").err


def test_a_damaged_retraction_hides_nothing(cli, me):
    session = turn(me.create())
    session.append({"seqs": [4]}, kind="retract", format="segue", refs=("retract",))
    damage("segue.db", 5)
    ran = cli("show", "latest")
    assert (ran.code, "Volume fell by 9 %." in ran.out) == (1, True)
    assert "nothing is marked as retracted" in ran.err


def test_doctor_tells_versions_and_what_is_wrong(cli, me):
    ran = cli("doctor")
    assert (ran.code, "everything is as it should be" in ran.out) == (0, True)
    assert segue.__version__ in ran.out
    assert "apsw" in ran.out
    Path("segue.db").chmod(0o644)
    ran = cli("doctor")
    assert (ran.code, bool(re.search("warn .*chmod 600 .*segue.db", ran.out))) == (1, True)
    assert {line["level"] for line in cli("doctor", "--json").lines} == {"ok", "warn"}
    assert cli("doctor", "--json", "--store", "nowhere.db").lines[-1]["level"] == "warn"


def test_resume_shows_the_briefing_and_writes_nothing(cli, me):
    session = turn(me.create(title="A"))
    ran = cli("resume", session.id)
    assert (ran.code, "under a minute" in ran.out) == (0, True)
    assert "不到一分钟" in cli("resume", "--language", "zh").out
    (line,) = cli("resume", "--json", "--time-zone", "Asia/Shanghai").lines
    assert (line["session"]["id"], line["briefing"]["zone"]) == (session.id, "Asia/Shanghai")
    assert session.refresh().head == 4
    assert cli("resume", "--language", "xx").code == 2
    assert "no folder 'nowhere'" in cli("resume", "--files", "nowhere").err
    assert cli("resume", "--time-zone", "Nowhere/Land").code == 2

# ruff: noqa: F401, F811 - pytest finds fixtures by their names
"""Where output goes: nothing that is there is destroyed, nothing steers a terminal, no loss is silent."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import segue
from cli_runs import STEERING, alone, cli, db, me, on_a_terminal, turn

HOSTILE = "\x1b]0;owned\x07\x1b[2J \u202egnp.exe \x9b31m\r\nnext"
PAGE = ("export", "latest", "--as", "markdown")


def shell(line):
    words = ["bash", "-c", line.replace("segue ", f"{sys.executable} -m segue ")]
    return subprocess.run(words, capture_output=True, check=False, timeout=60)


@pytest.fixture
def page(cli, me):
    """The session that is exported, as Markdown."""
    turn(me.create(title="A"))
    return cli(*PAGE).out


def test_an_export_never_destroys_the_store(cli, page, me, tmp_path):
    (tmp_path / "link").symlink_to("segue.db")
    names = ["segue.db", "./segue.db", tmp_path / "segue.db", "link"]
    for name in [*names, "segue.db-wal", "segue.db-shm", "segue.db-journal"]:
        ran = cli(*PAGE, "--output", name)
        assert (ran.code, "belongs to the store" in ran.err) == (2, True), name
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": "hi"}]))
    assert cli("convert", "chat.json", "--to", "anthropic", "--output", "segue.db").code == 2
    assert cli("verify").code == 0
    assert cli("copy", "--to", "jsonl:folder").code == 0
    before = {path: path.read_bytes() for path in Path("folder").rglob("*") if path.is_file()}
    for inside in [*before, "folder/new.md", "folder"]:
        assert cli(*PAGE, "--store", "jsonl:folder", "--output", inside).code == 2, inside
    assert {path: path.read_bytes() for path in Path("folder").rglob("*") if path.is_file()} == before


def test_what_is_no_regular_file_is_written_to_as_it_is(page):
    os.mkfifo("pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append(Path("pipe").read_bytes()))
    reader.start()
    ran = shell("segue export latest --as markdown --output pipe")
    reader.join(timeout=60)
    assert (ran.returncode, got, Path("pipe").is_fifo()) == (0, [page.encode()], True)
    assert ran.stdout == f"pipe: {len(page.encode()):,} bytes\n".encode()
    assert shell("segue export latest --as markdown --output /dev/null").returncode == 0
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    full = shell("segue export latest --as markdown --output /dev/full")
    assert (full.returncode, b"/dev/full cannot be written: No space" in full.stderr) == (5, True)
    Path("out").write_text("before\n")
    assert shell("segue export latest --as markdown --output /dev/stdout >> out").returncode == 0
    assert Path("out").read_text() == f"before\n{page}/dev/stdout: {len(page.encode()):,} bytes\n"
    gone = shell("segue export latest --as markdown --output /dev/stdout | true; exit ${PIPESTATUS[0]}")
    assert gone.returncode in (0, 141)


def test_a_file_is_private_keeps_its_mode_and_appears_whole_where_a_link_says(cli, page, tmp_path):
    Path("new.md.part").write_text("mine")
    assert cli(*PAGE, "--output", "new.md").code == 0
    assert (Path("new.md").read_text(), Path("new.md").stat().st_mode & 0o777) == (page, 0o600)
    assert Path("new.md.part").read_text() == "mine"
    Path("old.md").write_text("old")
    Path("old.md").chmod(0o640)
    (tmp_path / "far").mkdir()
    Path("link.md").symlink_to("old.md")
    Path("dangling.md").symlink_to("far/new.md")
    for name, real in (("link.md", "old.md"), ("dangling.md", "far/new.md")):
        assert cli(*PAGE, "--output", name).code == 0
        assert (Path(name).is_symlink(), Path(real).read_text()) == (True, page)
    assert Path("old.md").stat().st_mode & 0o777 == 0o640
    assert cli("export", "latest", "--output", "old.md").code == 2  # it was not imported
    assert Path("old.md").read_text() == page
    assert cli(*PAGE, "--output", "far/").code == cli(*PAGE, "--output", "nowhere/x.md").code == 5
    assert not [name for name in os.listdir() + os.listdir("far") if name.startswith(".segue-")]


def test_exports_to_one_file_at_once_each_write_a_whole_one(page):
    command = "segue export latest --as markdown --output same.md"
    assert b"cannot" not in shell(" & ".join([command] * 4) + " & wait").stderr
    assert os.listdir() == [name for name in os.listdir() if not name.startswith(".segue-")]
    assert Path("same.md").read_text() == page


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["rm", "latest", "--yes", "--tenant", "", "--user", ""], "--tenant"),
        (["--user", "", "rm", "latest", "--yes"], "--user"),
        (["ls", "--store", ""], "--store"),
        (["rm", "", "--yes"], "session"),
        (["show", ""], "session"),
        (["resume", ""], "session"),
        (["export", ""], "session"),
        (["export", "latest", "--output", ""], "--output"),
        (["ls", "--forks-of", ""], "--forks-of"),
        (["import", ""], "path"),
        (["convert", "", "--to", "anthropic"], "path"),
        (["copy", "--to", ""], "--to"),
        (["copy", "--from", "", "--to", "x.db"], "--from"),
        (["migrate", "", "--plan"], "URL"),
    ],
)
def test_an_empty_word_is_no_wish_for_the_default(cli, me, words, named):
    session = me.create()
    ran = cli(*words)
    assert (ran.code, f"argument {named}: it is empty" in ran.err) == (2, True)
    session.refresh()


def test_what_is_exported_to_a_terminal_steers_it_no_more_than_show_does(me):
    session = me.create(title=HOSTILE)
    session.append({"role": "user", "content": HOSTILE})
    Path("chat.json").write_text(json.dumps([{"role": "user", "content": HOSTILE}], ensure_ascii=False))
    for words in ([*PAGE], ["export", "latest", "--as", "html"], ["export", "latest", "--as", "messages"],
                  ["convert", "chat.json", "--to", "openai.chat"]):  # fmt: skip
        for more in ([], ["--output", "/dev/stdout"]):
            received, code = on_a_terminal(*words, *more, columns=80)
            assert (code, "\\u202e" in received) == (0, True), words
            assert not STEERING.search(received), words
    for more in ([], ["--output", "/dev/stdout"]):
        received, code = on_a_terminal("export", "latest", "--as", "bundle", *more, columns=80)
        assert (code, "--output" in received) == (2, True)
        assert not STEERING.search(received)


def test_a_session_that_was_not_imported_is_exported_as_messages(cli, me):
    me.create()
    ran = cli("export", "latest")
    assert (ran.code, "--as messages" in ran.err) == (2, True)


def test_an_option_that_the_export_does_not_use_is_refused(cli, page):
    for kind, option in (("html", ["--lines"]), ("markdown", ["--format", "anthropic"]), ("original", ["--lines"])):
        ran = cli("export", "latest", "--as", kind, *option)
        assert (ran.code, f"{option[0]} goes with --as messages" in ran.err) == (2, True)


def test_convert_leaves_no_file_of_a_folder_out_in_silence(cli, alone):
    Path("folder/more").mkdir(parents=True)
    ran = cli("convert", "folder", "--to", "anthropic")
    assert (ran.code, "there is no file in it" in ran.err) == (2, True)
    Path("folder/notes.txt").write_text("mine")
    assert cli("convert", "folder", "--to", "anthropic").code == 2
    for name in ("b", "more/c", "a"):
        Path(f"folder/{name}.json").write_text(json.dumps([{"role": "user", "content": name}]))
    ran = cli("convert", "folder", "--to", "anthropic")
    assert [line["messages"][0]["content"] for line in ran.lines] == ["a", "b", "more/c"]
    assert (ran.code, "skipped: folder/notes.txt: text" in ran.err) == (0, True)
    Path("torn.jsonl").write_text('{"role": "user", "content": "hi"}\n{"role": "assis')
    ran = cli("convert", "torn.jsonl", "--to", "anthropic")
    assert (ran.code, "defects: torn.jsonl: torn 1" in ran.err) == (0, True)


def test_convert_takes_a_bundle(cli, me):
    for _ in range(2):
        turn(me.create(title="A"))
    ids = [line["id"] for line in cli("ls", "--json").lines]
    assert cli("export", *ids, "--as", "bundle", "--output", "two.segue").code == 0
    lines = cli("convert", "two.segue", "--to", "openai.chat").lines
    assert [(line["id"], line["title"], len(line["messages"])) for line in lines] == [(id, "A", 4) for id in ids]


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:sekret@host/db",
        "postgresql://me:se/kr@et:sekret@host/db",
        "postgresql://host/db?user=me&password=sekret",
        "postgresql://host/db?sslPassword=sekret#sekret&x=1",
        "mysql://host/db?passwd=sekret",
        "redis://:sekret@host/0",
        "mongodb://host/db?tls=true&tlsCertificateKeyFilePassword=sekret",
        "mongodb://host/db?authMechanismProperties=AWS_SESSION_TOKEN:sekret",
        "postgresql://host/db?pass%77ord=sekret",
    ],
)
def test_no_password_of_a_url_is_shown(url):
    from segue.cli.address import shown

    assert "***" in shown(url)
    assert "sekret" not in shown(url)
    assert "host" in shown(url)
    assert shown("postgresql://me@host:5/a@b?sslmode=require") == "postgresql://me@host:5/a@b?sslmode=require"


def test_output_that_cannot_be_written_is_told(cli, me):
    turn(me.create())
    for line in ("ls > /dev/full", "ls --json > /dev/full", "show latest --raw > /dev/full", "show latest >&-",
                 "export latest --as html > /dev/full", "export latest --as html >&-"):  # fmt: skip
        ran = shell(f"segue {line}")
        assert (ran.returncode, b"the output cannot be written" in ran.stderr) == (5, True), line
        assert not {b"Traceback", b"ignored"} & set(ran.stderr.split()), line
    assert b"Traceback" not in shell("segue show >&-").stderr
    assert shell("segue rm latest <&-").returncode == 2
    assert shell("segue show nosuchid 2>&-").returncode == 3


def test_a_store_that_cannot_be_looked_at_is_told(cli, tmp_path):
    for url in (f"jsonl:{'x' * 300}", f"{'x' * 300}.db"):
        ran = cli("ls", "--store", url)
        assert (ran.code, "cannot be read" in ran.err) == (5, True)
    (tmp_path / "locked").mkdir(mode=0)
    if os.geteuid() == 0:
        return  # nothing is unreadable to root
    assert cli("ls", "--store", "jsonl:locked").code == 5

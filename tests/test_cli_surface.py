# ruff: noqa: F401, F811 - pytest finds fixtures by their names
"""What all commands have in common: harmless output, documentation, errors, life as a process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import segue
from cli_runs import STEERING, alone, cli, damage, db, me, on_a_terminal, turn
from segue.cli.commands import COMMANDS
from segue.cli.docs import document
from segue.cli.outcome import EXIT_CODES

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/] \u202egnp.exe \x9b31m\r\nnext"


def test_hostile_content_steers_no_terminal(cli, me, monkeypatch):
    session = me.create(title=HOSTILE, key="k")
    session.append(
        {"role": "user", "content": HOSTILE},
        {
            "role": "assistant",
            "content": [
                {"type": HOSTILE, "x": HOSTILE},
                {"type": "tool_use", "id": HOSTILE, "name": HOSTILE, "input": {HOSTILE: HOSTILE}},
            ],
        },
    )
    session.append({"text": HOSTILE, "facts": {}}, kind="x\u202e", format="segue")
    session.append({"source": HOSTILE, "kind": HOSTILE, "version": HOSTILE}, kind="observation", format="segue")
    for colour in ("", "1"):
        monkeypatch.setenv("FORCE_COLOR", colour)
        for words in (["ls"], ["ls", "--json"], ["show", "key:k"],
                      ["show", "key:k", "--full"], ["show", "key:k", "--json"],
                      ["title", "key:k", HOSTILE], ["fork", "key:k"], ["tag", "key:k"]):  # fmt: skip
            out = re.sub("\x1b\\[[0-9;]*m", "", cli(*words).out) if colour else cli(*words).out
            assert not STEERING.search(out), words
            assert "[bold red]x[/]" in out or "\\u202e" in out


def test_every_command_prints_the_fields_it_documents(cli, me):
    turn(me.create(key="k"))
    damage("segue.db", 3)
    words = {
        "ls": [],
        "resume": [],
        "title": ["key:k", "t"],
        "sweep": [],
        "verify": [],
        "doctor": [],
        "rm": ["key:k", "--yes"],
    }
    for command in COMMANDS:
        if command.name == "resume":
            continue  # the damage; its fields are below
        for line in cli(command.name, *words.get(command.name, ["key:k"]), "--json").lines:
            assert set(line) <= set(command.json), command.name
    with segue.open("sqlite:///fresh.db") as db:
        db.scope().create()
    (line,) = cli("resume", "--json", "--store", "fresh.db").lines
    assert set(line) == set(next(c.json for c in COMMANDS if c.name == "resume"))


def test_the_documentation_is_what_the_program_says():
    path = Path(__file__).parents[1] / "docs" / "cli.md"
    assert path.read_text() == document(), "run: python -m segue.cli.docs > docs/cli.md"


def test_every_command_option_and_exit_code_is_documented(cli):
    page = document()
    for command in COMMANDS:
        assert f"### segue {command.name}\n" in page
        shown = cli(command.name, "--help").out
        for option in re.findall(r"--[a-z-]+", shown.split("options of every command")[0]):
            assert option in page or option == "--help"
        assert command.summary.split()[0] in shown
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page


def test_the_examples_of_the_documentation_are_accepted(cli):
    import shlex

    from segue.cli.commands import parser

    for command in COMMANDS:
        words = shlex.split(command.example)
        assert parser().parse_args(words[1:]).command is command


def test_without_a_command_there_is_help(cli):
    ran = cli()
    assert (ran.code, "commands:" in ran.out) == (0, True)


@pytest.mark.parametrize(
    "words", [["nonsense"], ["ls", "--nonsense"], ["show"], ["ls", "--limit", "x"], ["ls", "--al"]]
)
def test_wrong_words_end_with_two(cli, words):
    assert cli(*words).code == 2


def test_wrong_words_are_told_with_the_usage_of_their_command(cli):
    ran = cli("show", "xxxx", "--lst", "3")
    assert (ran.err.startswith("usage: segue show "), "--lst" in ran.err.splitlines()[-1]) == (True, True)


@pytest.mark.parametrize("words", [["ls", "--nonsense"], ["--json", "nonsense"], ["show"], ["ls", "--limit", "x"]])
def test_wrong_words_are_told_to_programs_in_json(cli, words):
    ran = cli(*words, *(["--json"] if "--json" not in words else []))
    told = json.loads(ran.err)
    assert (ran.code, told["error"], told["exit_code"]) == (2, "Invalid", 2)
    assert not cli("title", "x", "--", "y", "--json").err.startswith("{")


def test_errors_are_one_line_and_debug_shows_where(cli, db):
    assert len(cli("show", "nosuchid").err.splitlines()) == 1
    assert "Traceback" in cli("show", "nosuchid", "--debug").err


def test_a_mistake_of_segue_is_told_as_one(cli, me, monkeypatch):
    monkeypatch.setattr("segue.cli.address.Desk.find", lambda *_: 1 / 0)
    ran = cli("show", "latest")
    assert (ran.code, "ZeroDivisionError" in ran.err) == (70, True)
    with pytest.raises(ZeroDivisionError):
        cli("show", "latest", "--debug")


def test_an_interrupted_command_says_so(cli, db, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("segue.cli.address.Desk.find", interrupt)
    ran = cli("show", "latest")
    assert (ran.code, ran.err) == (130, "segue: interrupted\n")


def test_a_commit_of_unknown_outcome_ends_with_six(cli, me, monkeypatch):
    me.create()

    def fail(*_):
        raise segue.OutcomeUnknown("the disk failed at the commit")

    monkeypatch.setattr("segue.Session.rename", fail)
    assert cli("title", "latest", "x").code == 6


# As a process


def process(*words, **environment):
    # Given in full: readline sets COLUMNS in the process's environment behind Python's back.
    return subprocess.run(
        [sys.executable, "-m", "segue", *words],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip


def test_it_runs_as_a_module_in_colour_and_without_rich_in_plain(me, tmp_path):
    me.create(title="华东")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "rich.py").write_text("raise ImportError('no rich here')\n")
    colour = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    plain = process("ls")
    assert plain.returncode == 0
    assert process("ls", **colour, PYTHONPATH=str(tmp_path / "without")).stdout == plain.stdout
    coloured = process("ls", **colour).stdout
    assert coloured != plain.stdout
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == plain.stdout


def test_a_terminal_of_another_encoding_gets_escapes(me):
    me.create(title="华东")
    ran = process("ls", PYTHONIOENCODING="ascii")
    assert (ran.returncode, "\\u534e\\u4e1c" in ran.stdout) == (0, True)
    ran = process("ls", "--json", PYTHONIOENCODING="ascii")
    assert json.loads(ran.stdout)["title"] == "华东"


def test_a_reader_that_goes_away_is_no_error(me):
    session = me.create()
    for _ in range(5):
        session.append(*({"role": "user", "content": "x" * 1_000} for _ in range(100)))
    ran = subprocess.run(
        f"{sys.executable} -m segue show latest --json | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ran.stdout)["seq"] == 1
    assert ran.stderr == ""


def test_importing_segue_brings_no_command_line():
    code = "import sys, segue; sys.exit(any(m.startswith(('segue.cli', 'rich', 'argparse')) for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("columns", [60, 80])
def test_on_a_terminal_whatever_a_command_says_fits(me, columns):
    from segue.cli.text import width

    session = turn(me.create(id="same-" + "1" * 40, title="plain words " * 20, tags=["t" * 30]))
    for n in range(3):
        turn(me.create(title="x", id=f"same-{n}" + "e" * 40))
    Path("notes").write_text("mine " * 20)
    for words, code in (
        (["ls", "--full-ids"], 0), (["tag", session.id], 0), (["fork", session.id], 0), (["show", "same"], 2),
        (["import", "notes"], 1), (["--help"], 0), (["doctor"], 0), (["resume"], 0), (["rm", session.id], 1),
        (["ls", "--nonsense"], 2),
    ):  # fmt: skip
        received, ended = on_a_terminal(*words, columns=columns, answer="n\n")
        text = re.sub("\x1b\\[[0-9;]*[mK]", "", received)
        assert (ended, [line for line in text.splitlines() if width(line) > columns]) == (code, []), words


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_lines_fit_and_only_colours_are_sent(me, columns):
    from segue.cli.text import width

    session = turn(me.create(title=HOSTILE + "华东八月销售额下降分析" * 9, tags=["t" * 30, "u" * 30]))
    session.append({"role": "user", "content": HOSTILE + "为什么华东八月销售额下降？" * 30})
    session.append({"source": "s" * 200, "kind": "k", "version": "v" * 99}, kind="observation", format="segue")
    for words in (["ls"], ["show", "latest"]):
        received, code = on_a_terminal(*words, columns=columns)
        assert (code, "\x1b[" in received) == (0, True)
        text = re.sub("\x1b\\[[0-9;]*m", "", received)
        assert not STEERING.search(text)
        assert max(width(line) for line in text.split("\n")) <= columns


def test_on_a_terminal_rm_asks(me):
    session = turn(me.create(title="precious"))
    received, code = on_a_terminal("rm", session.id, columns=80, answer="no\n")
    assert (code, "erase 1 session for good? [y/N]" in received) == (1, True)
    assert on_a_terminal("rm", session.id, columns=80, answer="y\n")[1] == 0
    with pytest.raises(segue.NotFound):
        session.refresh()

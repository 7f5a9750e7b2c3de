"""A command line on a real file in a folder of its own, and what is done to the file behind its back."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import NamedTuple

import apsw
import pytest

import segue
from segue.cli import main

STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self):
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def alone(monkeypatch, tmp_path):
    for name in ("SEGUE_STORE", "SEGUE_TENANT", "SEGUE_USER", "COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(capsys, alone):
    def run(*argv):
        try:
            code = main([str(word) for word in argv])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return run


@pytest.fixture
def db(alone):
    with segue.open("sqlite:///segue.db") as db:
        yield db


@pytest.fixture
def me(db):
    return db.scope()


def turn(session, question="Why did sales fall?", answer="Volume fell by 9 %."):
    session.append(
        {"role": "user", "content": question},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "let me see", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "query", "input": {"sql": "SELECT\n1"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "row\n" * 500}]},
    )
    session.append({"role": "assistant", "content": answer}, usage=segue.Usage(3_000, 200))
    return session


def age(path, *, days):
    """Make everything in the file older."""
    us = days * 86_400_000_000
    con = apsw.Connection(path)
    con.execute(
        "UPDATE sessions SET created_us = created_us - ?1, active_us = active_us - ?1, due_us = due_us - ?1, "
        "archived_us = archived_us - ?1 WHERE shelf = 2 OR due_us IS NOT NULL OR is_pinned",
        (us,),
    )
    con.close()


def damage(path, seq):
    """Change the stored body of an entry behind the store's back."""
    con = apsw.Connection(path)
    con.execute("UPDATE entries SET digest = zeroblob(32) WHERE pos & 0xffffffff = ?", (seq,))
    assert con.changes()
    con.close()


def on_a_terminal(*words, columns, answer=None):
    """What a terminal of so many columns receives, and the exit code."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[1] &= ~termios.OPOST  # no carriage returns, so that lines can be compared
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    environment = {**os.environ, "TERM": "xterm-256color"}
    ran = subprocess.Popen(
        [sys.executable, "-m", "segue", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    if answer is not None:
        os.write(ours, answer.encode())
    received = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # Linux says so when the other side is closed
            part = b""
        if not part:
            break
        received += part
    os.close(ours)
    return received.decode(), ran.wait(timeout=60)

"""
What a stranger broke, by kind: a caller's slip that others paid for, a lease that nobody could end, a queue that jams.

Each test is a sentence.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest

import segue
from segue.engine import Lane

SAY = {"role": "user", "content": "hello"}


@pytest.fixture(params=["memory:", "sqlite:///broken.db"])
def me(request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    with segue.open(request.param) as db:
        yield db.scope(tenant="acme", user="lin")


# A slip is refused at the door: in a commit it would hit everybody who shares it.

SLIPS: dict[str, Callable[[Any], object]] = {
    "usage as a dict": lambda s: s.append(SAY, usage={"input": 1}),
    "usage over what stores hold": lambda s: s.append(SAY, usage=segue.Usage(input=1 << 70)),
    "usage below zero": lambda s: s.append(SAY, usage=segue.Usage(input=-5)),
    "a time as text": lambda s: s.append(SAY, occurred_at="2026-08-28"),
    "one ref as text": lambda s: s.append(SAY, refs="source"),
    "one id as text": lambda s: s.append(SAY, ids="a"),
    "an endless lease": lambda s: s.run(ttl=timedelta.max),
    "a lease as a number": lambda s: s.run(ttl=30),
    "a wait as a number": lambda s: s.run(wait=30),
}


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_a_slip_is_refused_by_name_before_anything_is_written(me: Any, slip: Callable[[Any], object]) -> None:
    session = me.create()
    with pytest.raises(segue.Invalid):
        slip(session)
    assert session.refresh().head == 0
    assert session.info.lease is None


@pytest.mark.parametrize("filters", [{"tag": "\ud800"}, {"parent": "\ud800"}, {"key_prefix": 5}, {"since": "2026"}])
def test_a_filter_that_cannot_be_is_refused_by_name(me: Any, filters: dict[str, Any]) -> None:
    with pytest.raises(segue.Invalid):
        me.list(**filters)


@pytest.mark.parametrize("at_most", [timedelta.max, timedelta(0), 5])
def test_a_pause_that_is_refused_leaves_the_run_as_it_was(me: Any, at_most: Any) -> None:
    session = me.create()
    with session.run() as run:
        with pytest.raises(segue.Invalid):
            run.pause(at_most)
        run.append(SAY)
    with session.run():
        pass


# An id that the caller gave is the id.


def test_a_draft_that_is_appended_again_under_the_same_id_is_stored_once(me: Any) -> None:
    session = me.create()
    for _ in range(2):
        session.append(segue.draft(SAY), ids=["question-1"])
    assert [entry.id for entry in session.read()] == ["question-1"]


def test_a_child_is_found_again_whatever_call_asks_for_it(me: Any) -> None:
    session = me.create()
    first = session.child("researcher", call="call-1")
    assert session.child("researcher", call="call-2").id == first.id
    assert session.child("researcher").id == first.id
    assert len(session.read(kinds=["segue.child"])) == 1


# Nothing keeps a session from others for ever.


def test_the_lease_of_a_run_that_everybody_has_forgotten_is_not_renewed(me: Any) -> None:
    session = me.create()
    session.run()
    _renew_all(session.log.engine.keeper)
    assert not session.log.engine.keeper._kept


def test_ctrl_c_at_any_step_of_a_run_s_start_leaves_neither_a_lock_nor_a_renewed_lease() -> None:
    with segue.open("memory:") as db:
        scope, step = db.scope(), 1
        while _interrupted(scope.create(), step):
            db.engine.store.shift_clock(60_000_000)  # what could not be given back has expired
            assert not db.engine._lanes[0]._busy.locked(), step
            _renew_all(db.engine.keeper)
            assert not db.engine.keeper._kept, step
            step += 1
        assert step > 30


def _renew_all(keeper: Any) -> None:
    if keeper._kept:
        gc.collect()
    for kept in list(keeper._kept):
        keeper._renew(kept)


def _interrupted(session: segue.Session, at: int) -> bool:
    """Whether the start of a run came to its step ``at``, where Ctrl-C was pressed."""
    left, before = at, ""

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left, before
        if not frame.f_code.co_filename.endswith(("segue/run.py", "segue/engine.py", "segue/session.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            # Python looks for signals after calls, at the start of a function and at jumps back, only there.
            left -= before.startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
            before = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if left == 0:
                left = -1
                raise KeyboardInterrupt
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            session.run()
    finally:
        sys.settrace(earlier)
    return left < 0


def test_a_call_that_comes_as_the_handle_closes_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    with segue.open("memory:") as db:
        session = db.scope().create()
        lane = db.engine._lanes[0]
        answers: list[BaseException | None] = []

        def ask() -> None:
            try:
                session.append(SAY)
            except segue.SegueError as error:
                answers.append(error)
            else:
                answers.append(None)

        lane._crowd = 2  # the long way, through the queue
        lane._rouse()
        rouse = Lane._rouse
        closing = threading.Thread(target=lane.close)

        def late(self: Lane) -> None:
            closing.start()  # between the entry into the queue and the waking of the thread
            closing.join()
            rouse(self)

        monkeypatch.setattr(Lane, "_rouse", late)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(60)
        assert answers == [None]

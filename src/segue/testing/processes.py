"""Several processes on the same data, for stores that declare "processes" or "durable"."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, ClassVar

import pytest

from .case import StoreCase, draft
from .child import Child
from .handles import PATIENCE_SECONDS


class ProcessCase(StoreCase):
    _children: ClassVar[dict[tuple[type, Path], list[Child]]] = {}

    def start_child(self) -> Child:
        """A new process with a handle on the data of ``a`` and ``b``."""
        made = type(self)
        child = Child(inspect.getfile(made), made.__qualname__, self.directory)
        assert child.hear(PATIENCE_SECONDS) == "ready"
        return child


class ProcessTests(ProcessCase):
    """Two other processes race for each compare-and-set; they are started once for all these tests."""

    @classmethod
    def teardown_class(cls) -> None:
        """End the processes."""
        for made, directory in list(cls._children):
            if made is cls:
                for child in cls._children.pop((made, directory)):
                    child.close()

    def race_processes(self, **command: Any) -> list[dict[str, Any]]:
        """What two processes answer that do the same at once; ``%`` in a text is the number of the process."""
        self.needs("processes")
        where = type(self), self.directory
        if where not in self._children:
            self.teardown_class()
            self._children[where] = [self.start_child() for _ in range(2)]
        children = self._children[where]
        for number, child in enumerate(children):
            child.tell(scope=self.me, **{name: _numbered(value, number) for name, value in command.items()})
        return [child.hear(PATIENCE_SECONDS) for child in children]

    def test_one_of_two_processes_creates_by_key(self) -> None:
        for number in range(5):
            answers = self.race_processes(do="create", id=f"s-{number}-%", key=f"k{number}")
            assert sorted("refused" in answer for answer in answers) == [False, True]

    def test_one_of_two_processes_appends_to_the_head_expected(self) -> None:
        session = self.create()
        for head in range(5):
            answers = self.race_processes(do="append", session=session, ids=[f"{head} of %"], expect=head)
            assert sorted(answer.get("refused", "done") for answer in answers) == ["HeadMoved", "done"]
        assert self.info(session).head == 5

    def test_the_same_ids_from_two_processes_are_stored_once(self) -> None:
        session = self.create()
        for number in range(5):
            answers = self.race_processes(do="append", session=session, ids=[f"{number} a", f"{number} b"])
            assert sorted(answer["new"] for answer in answers) == [0, 2]
            assert answers[0]["seqs"] == answers[1]["seqs"]
        assert self.info(session).head == 10

    def test_one_of_two_processes_takes_the_lease(self) -> None:
        for _ in range(5):
            answers = self.race_processes(do="take", session=self.create(), run="run-%")
            assert sorted(answer.get("refused", "granted") for answer in answers) == ["Busy", "granted"]

    def test_one_of_two_processes_updates_the_version_expected(self) -> None:
        session = self.create()
        for version in range(self.info(session).version, 6):
            answers = self.race_processes(do="update", session=session, title="title %", expect=version)
            assert sorted(answer.get("refused", "done") for answer in answers) == ["VersionMoved", "done"]

    def test_what_another_process_stored_is_seen_here(self) -> None:
        session = self.create(draft())
        self.race_processes(do="append", session=session, ids=["from a child"])
        assert self.ids(session)[1:] == ["from a child"]


def _numbered(value: Any, number: int) -> Any:
    if isinstance(value, list):
        return [_numbered(each, number) for each in value]
    return value.replace("%", str(number)) if isinstance(value, str) else value


class CrashTests(ProcessCase):
    def test_what_was_acknowledged_before_a_kill_is_there_and_nothing_is_torn(self) -> None:
        self.needs("durable")
        if "processes" not in self.a.capabilities:
            pytest.skip("only one process may open this store; its own tests kill one")
        session, child = self.create(), self.start_child()
        child.tell(do="append-for-ever", scope=self.me, session=session, prefix="p")
        told = [child.hear(PATIENCE_SECONDS) for _ in range(20)]
        told += child.kill()
        stored = self.ids(session)
        assert [answer["head"] for answer in told] == list(range(1, len(told) + 1))
        assert stored == [f"p-{number}" for number in range(len(stored))]
        assert len(told) <= len(stored) <= len(told) + 1

    def test_a_killed_process_stops_nobody(self) -> None:
        self.needs("processes")
        session, child = self.create(), self.start_child()
        child.tell(do="append-for-ever", scope=self.me, session=session, prefix="p")
        for _ in range(5):
            child.hear(PATIENCE_SECONDS)
        child.kill()
        head = self.info(session).head
        assert self.append(session, draft()).head >= head + 1
        self.reopen()
        assert self.append(session, draft()).new == 1

"""Who writes a transcript, and what it has seen: from this follows who is late."""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .lines import Spent
from .place import Place

if TYPE_CHECKING:
    from segue import Run, SessionInfo
    from segue.briefing import Briefing

    from .turn import Turn

WRITERS_MAX = 4_096
"""Most transcripts of which one store remembers who wrote them."""

READINGS_MAX = 64
"""Most transcripts that one context remembers to have read."""


class Writer:
    """
    One process of the CLI that goes on with one transcript.

    Attributes:
        id: Its id, a UUID; if its entries become a fork, that fork's session id.
        place: The transcript.
        session: Id of the Segue session it was read from or began, once known.
        head: The last seq it has seen; None when it never read the transcript.
        has_read: Whether it read the transcript (the SDK resumed it).
        fork: Where its entries go since it was overtaken, or None.
        turn: The turn it writes in, or None.
        info: The session's row when it was read, and ``briefing`` what a turn found then, or None.
        busy: Id of the run of somebody else that held the session when it was read, or None.
        is_restored: Whether it comes from the spool: its fork may be there already.
        lock: Held while one of its appends is stored, so that they keep their order.
    """

    def __init__(self, place: Place, *, id: str | None = None) -> None:
        self.id = id or str(uuid.uuid4())
        self.place = place
        self.session: str | None = None
        self.head: int | None = None
        self.has_read = False
        self.fork: Place | None = None
        self.turn: Turn | None = None
        self.info: SessionInfo | None = None
        self.briefing: Briefing | None = None
        self.busy: str | None = None
        self.is_restored = False
        self.lock = threading.RLock()
        self.spent = Spent()

    @property
    def run(self) -> Run | None:
        """The run of its turn, while that lasts."""
        return None if self.turn is None else self.turn.run

    def facts(self) -> dict[str, Any]:
        """What a spooled append must remember of its writer."""
        return {"id": self.id, "session": self.session, "head": self.head, "has_read": self.has_read}

    @classmethod
    def from_facts(cls, place: Place, facts: Mapping[str, Any]) -> Writer:
        """The writer of a spooled append."""
        made = cls(place, id=facts["id"])
        made.is_restored = True
        made.session, made.head, made.has_read = facts["session"], facts["head"], facts["has_read"]
        return made


class Writers:
    """
    The writers of one store object.

    A transcript that was read has the reader of the asking context as its writer: the SDK starts its
    own tasks after the reading, and they inherit the context. One that was begun here has the writer
    that began it.
    """

    _readings: ContextVar[Mapping[tuple[int, Place], Writer]] = ContextVar("segue_claude_readings")
    _numbers = itertools.count()

    def __init__(self) -> None:
        self._number = next(self._numbers)
        self._begun: dict[Place, Writer] = {}
        self._lock = threading.Lock()

    def read(self, writer: Writer) -> None:
        """This context has read a transcript and may go on with it."""
        key = (self._number, writer.place)
        before = self._readings.get({}).get(key)
        if before is not None and before.run is not None and writer.turn is None:
            writer.turn, writer.briefing, writer.info = before.turn, before.briefing, before.info
        kept = [item for item in self._readings.get({}).items() if item[0] != key][1 - READINGS_MAX :]
        # A new mapping: contexts that were copied from this one keep what they have read.
        self._readings.set(dict([*kept, (key, writer)]))

    def of(self, place: Place) -> Writer:
        """The writer of a transcript in this context."""
        found = self._readings.get({}).get((self._number, place))
        if found is not None:
            return found
        with self._lock:
            writer = self._begun.pop(place, None) or Writer(place)
            self._begun[place] = writer  # the newest last
            if len(self._begun) > WRITERS_MAX:
                self._begun.pop(next(iter(self._begun)))
            return writer

    def forget(self, place: Place) -> None:
        """The transcript was deleted here."""
        with self._lock:
            self._begun.pop(place, None)
        readings = dict(self._readings.get({}))
        if readings.pop((self._number, place), None) is not None:
            self._readings.set(readings)

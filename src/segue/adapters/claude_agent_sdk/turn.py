"""
A turn: a run around a query. The lease is taken before the CLI is started, so that a second machine
waits or is refused; what the turn's CLI writes is fenced.
"""

from __future__ import annotations

import dataclasses
import uuid
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from claude_agent_sdk import ClaudeAgentOptions, project_key_for_directory

from segue import AsyncResumed, AsyncRun, AsyncSession, Resumed, ResumeOptions, Run, Session, Sources
from segue.briefing import Briefing
from segue.errors import Exists, Invalid, NotFound
from segue.model import Policy
from segue.run import TTL, WAIT

from .hooks import Hooks
from .mirror import TURN
from .place import Place
from .writers import Writer

if TYPE_CHECKING:
    from .store import SegueSessionStore

POLICIES = ("reject", "enqueue", "interrupt")
"""What a turn may do about a running one. Not rollback: the CLI cannot take back what it has written."""


def segue_options(
    store: SegueSessionStore, options: ClaudeAgentOptions | None = None, *, hooks: Hooks | bool = True
) -> ClaudeAgentOptions:
    """
    The options with the store in them, set so that nothing is lost.

    Args:
        store: Where the sessions are kept.
        options: The rest; None: the SDK's defaults.
        hooks: True: those of ``Hooks(store)``; False: none; they are added to the options' own.

    Returns:
        New options: ``session_store``, ``session_store_flush="eager"`` (a kill inside a turn then loses
        at most what the CLI wrote in the last moment; the SDK's default loses the whole turn), hooks.
    """
    options = options or ClaudeAgentOptions()
    if hooks is True:
        hooks = Hooks(store)
    added: dict[Any, list[Any]] = hooks.matchers() if hooks else {}
    own = dict(options.hooks or {})
    merged = {event: [*own.get(event, ()), *added.get(event, ())] for event in {**own, **added}}
    return dataclasses.replace(
        options,
        session_store=store,
        session_store_flush="eager",
        hooks=merged or None,
    )


class Turn:
    """
    The right to go on with one session, as an async context manager; ``options`` is for ``query``.

    Attributes:
        options: What to give ``query`` or ``ClaudeSDKClient``.
        session_id: The SDK's id of the session, also of a new one.
        briefing: What happened since it was left; None for a new one.
        run: The run, while the turn lasts.
    """

    options: ClaudeAgentOptions
    session_id: str
    briefing: Briefing | None
    run: Run | None

    def __init__(
        self,
        store: SegueSessionStore,
        options: ClaudeAgentOptions | None,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        resume: ResumeOptions | None = None,
        hooks: Hooks | bool = True,
    ) -> None:
        if policy not in POLICIES:
            raise Invalid(f"policy {policy!r} is none of {', '.join(POLICIES)}", where="policy")
        self._store = store
        self.options = options or ClaudeAgentOptions()
        self._lease: dict[str, Any] = {"policy": policy, "wait": wait, "ttl": ttl}
        self._resume = resume
        self._hooks = hooks
        self._run: AsyncRun | None = None
        self.briefing = None
        self.run = None

    @property
    def is_lost(self) -> bool:
        """True once another run took the session over; what this CLI still writes becomes a fork."""
        return self.run is not None and self.run.is_lost

    async def __aenter__(self) -> Self:
        place, session = await self._store.hop(self._find)
        self.session_id = place.session
        hooks = Hooks(self._store, resume=self._resume) if self._hooks is True else self._hooks
        self.options = segue_options(self._store, self.options, hooks=hooks)
        self._run = await self._take(session)
        self.run = self._run.sync
        try:
            writer = await self._store.hop(self._mark, place, session)
        except BaseException:
            await self._run.release()
            raise
        self._store.mirror.writers.read(writer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run, self._run, self.run = self._run, None, None
        if run is not None:
            await run.release()

    def _find(self) -> tuple[Place, Session]:
        """Which session the options mean, and options that name it."""
        given = self.options
        place = Place.of({"project_key": project_key_for_directory(given.cwd), "session_id": ""}, self._store.project)
        mirror = self._store.mirror
        wanted = given.resume
        if wanted is None and given.continue_conversation:
            found = mirror.summaries(place.project)  # last active first; as the SDK does, without sidechains
            wanted = next((one.session for one, _, data in found if not data.get("is_sidechain")), None)
            self.options = dataclasses.replace(given, continue_conversation=False, resume=wanted)
        if wanted is not None and not given.fork_session:
            place = place._replace(session=wanted)
            living = mirror.living(place)
            if living is None:
                raise NotFound(wanted)
            return place, living
        place = place._replace(session=given.session_id or str(uuid.uuid4()))
        self.options = dataclasses.replace(self.options, session_id=place.session)
        if mirror.load(place) is not None:
            raise Exists(f"session id {place.session!r} is taken; give it as resume to go on with it")
        return place, mirror.make(place)

    async def _take(self, session: Session) -> AsyncRun:
        engine = session.log.engine
        if session.info.head == 0:
            taken: AsyncRun = await AsyncSession(engine, session).run(**self._lease)
            return taken
        resumed: Resumed = await self._store.hop(self._plan, session)
        taken = await AsyncResumed(engine, resumed).run(**self._lease)
        self.briefing = resumed.briefing
        return taken

    def _plan(self, session: Session) -> Resumed:
        options = self._resume or ResumeOptions(sources=Sources(roots=(str(self.options.cwd or "."),)), config="pin")
        given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        return self._store.scope.resume(session, **given)

    def _mark(self, place: Place, session: Session) -> Writer:
        """From here on, whoever has not seen this mark is late."""
        run = self.run
        assert run is not None
        info = session.info
        done = run.append({"run": run.id}, kind=TURN, format="segue", origin="system")
        writer = Writer(place)
        writer.session, writer.head, writer.has_read, writer.turn = session.id, done.head, True, self
        writer.briefing, writer.info = self.briefing, info if info.head else None
        return writer

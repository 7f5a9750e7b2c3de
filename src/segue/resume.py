"""
Resume: find out what happened since, then go on.

``plan`` reads and writes nothing. The run that follows takes the lease, plans again if the head
moved, and appends in one batch the settlements of open calls and the note for the model. From then
on the note is history, and the prefix never changes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, Literal, get_args

from . import codec, formats, ground, holder, ledger, log, view, world
from .briefing import Briefing, OpenCall, ResumePolicy, brief, told_in
from .config import AgentConfig, Change, compare
from .engine import Pause
from .errors import ConfigDrift, Invalid, MaskRefused
from .ground import Ground
from .log import Log
from .mask import Mask, Stale, plan_mask
from .model import Draft, Policy, SessionInfo, check_type, from_us
from .run import TTL, WAIT, Run, acquire
from .store import Update
from .world import Finding, Sources

ConfigPolicy = Literal["ask", "pin", "adopt"]

TOLD_NOTES = 200
"""How many earlier notes are looked through for what was told already."""

RECENT = 20
"""How many messages back an answer's token count still stands for the size of the history."""


@dataclass(frozen=True, slots=True)
class ResumeOptions:
    """
    How a session is resumed.

    Attributes:
        agent: The agent's configuration now, to compare with the pinned one.
        config: What to do when they differ: ``ask`` (ConfigDrift), ``pin`` (keep the old one),
            ``adopt`` (take the new one; recorded as an entry).
        sources: How the sources of its observations are looked at.
        policy: When to tell and what to advise.
        time_zone: The user's, for days and times in the note: a tzinfo or a name (``Asia/Shanghai``); None: UTC.
        language: Of the note: ``en``, ``zh`` or one with registered templates.
        principal: As whom sources are looked at; None: the scope's user.
        stale: ``note``: readings that no longer hold are told in the note. ``mask``: their results are replaced
            in the view as well, where the provider's rules allow it; a new epoch begins.
    """

    agent: AgentConfig | None = None
    config: ConfigPolicy = "ask"
    sources: Sources = field(default_factory=Sources)
    policy: ResumePolicy = field(default_factory=ResumePolicy)
    time_zone: tzinfo | str | None = None
    language: str = "en"
    principal: str | None = None
    stale: Stale = "note"

    def __post_init__(self) -> None:
        if self.agent is not None:
            check_type(self.agent, AgentConfig, "agent")
        if self.config not in get_args(ConfigPolicy):
            raise Invalid(f"config {self.config!r} is none of ask, pin, adopt", where="config")
        check_type(self.sources, Sources, "sources")
        check_type(self.policy, ResumePolicy, "policy")
        if not isinstance(self.time_zone, tzinfo | str | None):
            raise Invalid("time_zone must be a tzinfo, a name such as 'Asia/Shanghai', or None", where="time_zone")
        check_type(self.language, str, "language")
        if self.principal is not None:
            check_type(self.principal, str, "principal")
        if self.stale not in get_args(Stale):
            raise Invalid(f"stale {self.stale!r} is none of note, mask", where="stale")


class Resumed:
    """
    A session, and what was found on coming back to it.

    Attributes:
        info: The session's row at the time of the plan.
        briefing: The gap, what changed, what is open, what is advised.
        mask: What ``run`` will mask, with ``stale="mask"``; None otherwise, and when it was refused.
        mask_refused: Why it may not mask; the note is told all the same.
    """

    info: SessionInfo
    briefing: Briefing
    mask: Mask | None
    mask_refused: MaskRefused | None

    def __init__(
        self, log: Log, info: SessionInfo, options: ResumeOptions, briefing: Briefing, mask: Mask | MaskRefused | None
    ) -> None:
        self._log = log
        self._options = options
        self.info = info
        self.briefing = briefing
        self.mask = mask if isinstance(mask, Mask) else None
        self.mask_refused = mask if isinstance(mask, MaskRefused) else None

    def __repr__(self) -> str:
        return f"<Resumed {self.info.id} {self.info.title!r}, head {self.info.head}>"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._log.id

    def messages(self) -> list[Any]:
        """The messages as they were left; open calls are answered in the view only."""
        return view.build(self._log, view.ViewSpec(format=self.info.format)).messages

    def run(
        self,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        id: str | None = None,
        keep_open: Collection[str] = (),
    ) -> Run:
        """
        Start the run that goes on: settles open calls and tells the model the briefing, once.

        The arguments and errors are those of ``Session.run``.
        """
        return self._log.engine.drive(self.acquire(policy=policy, wait=wait, ttl=ttl, id=id, keep_open=keep_open))

    def acquire(self, **options: Any) -> Generator[Pause, None, Run]:
        """(inner) The procedure of ``run``, whose pauses the caller drives."""
        return acquire(self._log, format=self.info.format, prepare=self._prepare, **options)

    def _prepare(self, run: Run) -> tuple[Draft, ...]:
        """What goes before the new question: the configuration and the note."""
        run.sources = self._options.sources
        now = self._log.info()
        was_held = self.info.lease is not None and self.info.lease.state == "running"
        if now.head != self.info.head or was_held:  # what the old run began was under way then, and is not now
            again = plan(self._log, now, self._options)
            self.info, self.briefing = now, again.briefing
            self.mask, self.mask_refused = again.mask, again.mask_refused
        entries = configure(self._log, now, self._options.agent, self._options.config)
        if self.mask is not None and self.mask.results:
            entries += (self.mask.draft(),)
        return (*entries, *self._note())

    def _note(self) -> tuple[Draft, ...]:
        if self.briefing.is_quiet:
            return ()
        rules = formats.rules(self.info.format)
        if rules is None:
            return ()
        text = self.briefing.text(self._options.language)
        body = {
            "facts": self.briefing.facts(),
            "language": self._options.language,
            "text": text,
            "for": self.info.format,
            "message": rules.note(text),
        }
        if self.mask_refused is not None:
            body["mask_refused"] = {"reason": self.mask_refused.reason, "seq": self.mask_refused.seq}
        return (log.draft(body, kind="note", format="segue", origin="system", refs=("note",)),)


def plan(log_: Log, info: SessionInfo, options: ResumeOptions) -> Resumed:
    """Look at everything a return needs to know, and write nothing."""
    changes = drift(log_, info, options.agent)
    if changes and options.config == "ask":
        raise ConfigDrift(tuple(change.text() for change in changes))
    now = from_us(log_.engine.store.now_us())
    found = ground.find(log_, info.format, info.head)
    records = ground.records(log_, info.head)
    live = ground.live(found, records)
    findings = world.check(
        live.observations,
        options.sources,
        budget=options.policy.probe_budget,
        principal=options.principal or log_.scope.user,
        now=now,
    )
    calls = tuple(OpenCall(call.id, call.name) for call in _open_calls(log_, info))
    is_paused = info.lease is not None and info.lease.state == "paused"
    is_alive = info.lease is not None and not is_paused and not holder.is_dead(info.lease.holder)
    running = (info.lease.run,) if info.lease is not None and is_alive else ()
    briefing = brief(
        now=now,
        last_active_at=log_.last_said(info),
        entries=info.head,
        policy=options.policy,
        live=live,
        findings=findings,
        others=ground.others(log_, live.observations, records),
        unknown=ledger.open_effects(records, running=running, log=log_, shared=info.base),
        approvals=calls if is_paused else (),
        calls=() if is_paused else calls,
        changes=changes,
        tokens=_tokens(log_, info),
        told=told_in(ground.notes(log_, found, info.head, TOLD_NOTES)),
        time_zone=options.time_zone,
        language=options.language,
    )
    return Resumed(log_, info, options, briefing, _mask(log_, info, options, found, findings=findings, now=now))


def _mask(
    log_: Log, info: SessionInfo, options: ResumeOptions, found: Ground, *, findings: Sequence[Finding], now: datetime
) -> Mask | MaskRefused | None:
    if options.stale != "mask":
        return None
    try:
        return plan_mask(log_, info.format, found, findings, now=now, language=options.language, upto=info.head)
    except MaskRefused as refused:
        return refused


def _open_calls(log_: Log, info: SessionInfo) -> tuple[formats.Call, ...]:
    return view.open_calls(log_, info.format, info.head) if formats.rules(info.format) else ()


def _tokens(log_: Log, info: SessionInfo) -> int:
    """Size of the history as the provider last counted it; 0 when no recent answer says."""
    for entry in log_.read(kinds=("message",), upto=info.head, reverse=True, limit=RECENT):
        if entry.usage is not None:
            return entry.usage.input + entry.usage.output
    return 0


def drift(log_: Log, info: SessionInfo, agent: AgentConfig | None) -> tuple[Change, ...]:
    """What differs between the pinned configuration and the agent's, as far as the history goes; empty: nothing."""
    if agent is None or info.config is None:
        return ()
    pinned = AgentConfig.from_json(codec.decode(info.config))
    changes = () if pinned.digest == agent.digest else compare(pinned, agent)
    if not any(change.what in ("tool-gone", "tool-schema") for change in changes):
        return changes
    found = ground.find(log_, info.format, info.head)
    return compare(pinned, agent, called=ground.called(log_, info.format, found, info.head))


def configure(log_: Log, info: SessionInfo, agent: AgentConfig | None, policy: ConfigPolicy) -> tuple[Draft, ...]:
    """
    Pin the agent's configuration to the session at its first run, or adopt a changed one where told to.

    Returns:
        The entry that records it, if anything was pinned or adopted.
    """
    if policy not in ("ask", "pin", "adopt"):
        raise Invalid(f"config {policy!r} is none of ask, pin, adopt", where="config")
    if agent is None:
        return ()
    changes = drift(log_, info, agent)
    if info.config is not None and (not changes or policy == "pin"):
        return ()
    words = tuple(change.text() for change in changes)
    if changes and policy == "ask":
        raise ConfigDrift(words)
    log_.engine.do(Update(log_.scope, log_.id, {"config": agent.encode()}, info.version))
    body = {
        "config": agent.to_json(),
        "digest": agent.digest,
        "action": "pinned" if info.config is None else "adopted",
        "changes": list(words),
    }
    return (log.draft(body, kind="config", format="segue", origin="system", refs=("config",)),)

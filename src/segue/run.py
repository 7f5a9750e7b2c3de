"""
A run: one attempt to advance a session, under a lease with a fence.

    free ──take──▶ running ──release──▶ free
                   running ──pause────▶ paused ──lapse or take──▶ free / running
                   running ──expiry───▶ free (the next to take it fences this run off)

The one hard invariant: once another run was granted the lease, nothing of this one enters the history.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from . import formats, holder, log
from .engine import Kept, Pause
from .errors import Busy, Invalid, LeaseLost, NotFound, OutcomeUnknown, QueueTimeout, SegueError
from .log import Log
from .model import Draft, Lease, Policy, check_count, check_name, check_strings, check_type, from_us, new_id
from .outcome import leaves_unknown, told_of
from .store import Appended, Queued, Release, Renew, Take
from .view import View, ViewSpec, build, open_calls, plan_cut

if TYPE_CHECKING:  # the ledger is imported by the first observation or effect
    from .ledger import Effect, Observation
    from .world import Sources

TTL = timedelta(seconds=30)
"""How long a lease lasts without being renewed; it is renewed at a third of that."""

POLL_SECONDS = (0.002, 0.05)
"""Shortest and longest pause between two looks at a busy session of another process."""

ASK_SECONDS = 1.0
"""A waiting run renews its place in the queue at least this often."""

LEASE_MAX = timedelta(days=36_500)
"""Longest lease, and longest pause."""

WAIT = timedelta(seconds=30)
"""How long ``enqueue`` waits for its turn unless told otherwise."""

GRANT = "segue.grant"
"""Kind of the entry that parts two runs with one id, where nothing else lies between them."""

POLICIES = ("reject", "enqueue", "interrupt", "rollback")


class Run:
    """
    The right to write into a session, as a context manager.

    Attributes:
        id: Its id; every entry it appends carries it.
        fence: Its number; a later run has a higher one.
        is_lost: True once another run is known to hold the session, or this one was given back.
        sources: How sources are looked at, where the session was resumed with them; for ``segue.using(run)``.
    """

    id: str
    fence: int
    is_lost: bool
    sources: Sources | None

    def __init__(self, log: Log, lease: Lease, format: str, ttl: timedelta) -> None:
        self._log = log
        self._format = format
        self._ttl = ttl
        self.id = lease.run
        self.fence = lease.fence
        self.is_lost = False
        self.sources = None
        self._why: SegueError | None = None
        self._kept = Kept(self._renew, ttl.total_seconds() / 3, self.lose)
        log.engine.keeper.add(self._kept)

    @property
    def log(self) -> Log:
        """(inner) Engine, scope and id, for the layers above."""
        return self._log

    @property
    def session_id(self) -> str:
        """Id of the session that this run advances."""
        return self._log.id

    def append(
        self,
        *items: Any,
        kind: str = "message",
        format: str | None = None,
        origin: str | None = None,
        ids: Sequence[str] | None = None,
        expect: int | None = None,
        **options: Any,
    ) -> Appended:
        """
        Append all items to the session, or none, if this run still holds it.

        Args:
            items: 1 to 1,000 messages (or other values); see ``segue.draft`` for the options.
            ids: One id an item, for a caller that may ask again; the same id is stored once.
            expect: The head the caller has seen, or None.

        Returns:
            The new head, the seq of each item, and how many were new.

        Raises:
            LeaseLost: A newer run holds the session; stop.
            Invalid: An item was refused; nothing was written.

        Guarantees: G1 durable, G2 atomic, G3 no gaps, G5 fenced, G6 once.
        """
        entries = self.drafts(items, ids, kind=kind, format=format, origin=origin, **options)
        return self.append_drafts(entries, expect=expect)

    def drafts(
        self, items: Sequence[Any], ids: Sequence[str] | None = None, *, format: str | None = None, **options: Any
    ) -> tuple[Draft, ...]:
        """The entries that ``append`` would store, checked; in the session's format unless told otherwise."""
        return log.drafts(items, ids, format=format or self._format, **options)

    def append_drafts(self, entries: tuple[Draft, ...], *, expect: int | None = None) -> Appended:
        """Append entries that are already made."""
        try:
            return self._log.append(entries, run=self.id, fence=self.fence, expect=expect)
        except LeaseLost as error:
            self.lose(error)
            raise

    def append_fact(self, entry: Draft) -> Appended:
        """(inner) Append what happened, even if another run holds the session by now: a fact is not lost."""
        return self._log.append((entry,), run=self.id)

    def check(self) -> None:
        """
        Raise LeaseLost when this run must stop: it was overtaken, given back, or could not renew in time.

        Ask before a step outside the session (a tool that writes); appends are checked by the store.
        """
        silent = time.monotonic() - self._kept.renewed
        if not self.is_lost and silent < self._ttl.total_seconds():
            return
        if isinstance(self._why, LeaseLost):
            raise self._why
        raise LeaseLost(self.id, self.fence, self._log.info().fence) from self._why

    def observe(
        self, source: str | Observation, version: object = None, *, value: object = None, **options: Any
    ) -> Observation:
        """
        Record a reading of the world: what was read, in which version.

        Args:
            source: The name of what was read (``warehouse:sales.orders``); or an ``Observation``, such as
                the functions of ``segue.inferred`` make, which is recorded as it is.
            version: What tells its state: a ``Version``, or any plain value; None when nothing does.
            value: What was read; only its digest is kept.
            options: max_age, tool, arguments, principal, call, collection; see ``segue.Observation``.

        Returns:
            The observation; ``stamp()`` is the line to hand to the model beside the value.

        Raises:
            LeaseLost: A newer run holds the session; stop.
        """
        from .ledger import Observation, Version, digest_of

        if isinstance(source, Observation):
            observation = replace(source, **options)
        else:
            seen = version if version is None or isinstance(version, Version) else Version.of(version)
            options.setdefault("observed_at", from_us(self._log.engine.store.now_us()))
            observation = Observation(source, seen, None if value is None else digest_of(value), **options)
        entry = log.draft(observation.body(), kind="observation", format="segue", origin="tool", refs=observation.refs)
        self.append_drafts((entry,))
        return observation

    def effect(
        self, name: str, *, source: str | None = None, key: str | None = None, call: str | None = None
    ) -> RunEffect:
        """
        A change of the world, around a ``with`` block: recorded before it starts, completed or failed after.

        Args:
            name: What is done (``publish_report``).
            source: What is changed, where it is a source.
            key: The idempotency key for the other side; None: one that a repeat of the same call gets again.
            call: The id of the tool call that asked for it.

        Returns:
            A context manager; hand its ``key`` to the other side, tell its outcome with ``done``.
        """
        from .ledger import Effect, effect_key

        key = key or effect_key(self._log.id, name=name, source=source, call=call)
        return RunEffect(self, Effect(new_id(), name, source=source, key=key))

    def view(self, spec: ViewSpec | None = None) -> View:
        """The view of the session now. See ``segue.view``."""
        return build(self._log, ViewSpec(self._format) if spec is None else check_type(spec, ViewSpec, "spec"))

    def messages(self, *, format: str | None = None, budget: int | None = None) -> list[Any]:
        """
        What the model is sent: the session's messages in the provider's form, valid by its rules.

        Args:
            format: anthropic, openai.responses or openai.chat; None: the session's own.
            budget: Most tokens (estimated). When exceeded, a cut is appended that leaves room, so
                that the messages do not change again with each request.

        Returns:
            A list to hand to the provider's client.

        Raises:
            ViewInvalid: The history breaks a rule that cannot be mended in the view.
            LeaseLost: A cut was needed and a newer run holds the session.

        Guarantees: G10 valid, and within an epoch each is a prefix of the next.
        """
        spec = ViewSpec(format=format or self._format)
        if budget is not None:
            check_count(budget, "budget")
        seen = build(self._log, spec)
        if budget is not None and seen.estimated_tokens > budget:
            self._cut(seen, spec, budget)
            seen = build(self._log, spec)
        return seen.messages

    def _cut(self, seen: View, spec: ViewSpec, budget: int) -> None:
        cut = plan_cut(seen, spec, budget)
        if cut is None:
            raise Invalid(
                f"the newest unit alone is over the budget of {budget:,} tokens; raise it or shorten the result",
                where="budget",
            )
        self.append_drafts((log.draft(cut.body(), kind="cut", format="segue", origin="system", refs=("cut",)),))

    def anthropic(self, client: Any, **options: Any) -> Any:
        """A conversation through the Anthropic client, kept in this session; see ``segue.adapters.anthropic.chat``."""
        from .adapters.anthropic import chat

        return chat(self, client, **options)

    def openai(self, client: Any, **options: Any) -> Any:
        """A conversation through the OpenAI client, kept in this session; see ``segue.adapters.openai.chat``."""
        from .adapters.openai import chat

        return chat(self, client, **options)

    def pause(self, at_most: timedelta) -> None:
        """
        Stop running without ending: the session waits for a person and holds nothing.

        Args:
            at_most: After this time the session counts as idle again; open calls stay open until then.

        Raises:
            Invalid: ``at_most`` is no timedelta, not positive, or over 100 years; the run goes on.
        """
        if not isinstance(at_most, timedelta) or not timedelta(0) < at_most <= LEASE_MAX:
            raise Invalid("at_most must be a positive timedelta of at most 100 years", where="at_most")
        self._stop()
        self._log.engine.do(
            Release(self._log.scope, self._log.id, self.id, self.fence, at_most // timedelta(microseconds=1))
        )

    def release(self) -> None:
        """Give the lease back. Idempotent; leaving the context does it."""
        if self._stop():
            with contextlib.suppress(NotFound):  # erased meanwhile: there is nothing to give back
                self._log.engine.do(Release(self._log.scope, self._log.id, self.id, self.fence))

    def _stop(self) -> bool:
        held = not self.is_lost
        self.is_lost = True
        self._log.engine.keeper.remove(self._kept)
        return held

    def _renew(self) -> None:
        ttl = self._ttl // timedelta(microseconds=1)
        self._log.engine.do(Renew(self._log.scope, self._log.id, self.id, self.fence, ttl))

    def lose(self, why: SegueError) -> None:
        """(inner) Note that another run holds the session."""
        self._why = why
        self._stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class RunEffect:
    """
    A change of the world under way.

    Attributes:
        key: The idempotency key to hand to the other side.

    A crash inside the block leaves it started and never ended: "outcome unknown". So does what tells
    as little as a crash: a cancellation, Ctrl-C, a timeout, a lost connection. Other errors: failed.
    """

    def __init__(self, run: Run, effect: Effect) -> None:
        self._run = run
        self._effect = effect
        self._end: Draft | None = None
        self.key = effect.key

    def done(self, result: Any = None, *, version: object = None) -> None:
        """
        Tell what came of it: a receipt, and the version that the write made (it refreshes own readings).

        It is completed then, whatever happens in the rest of the block, and whatever is refused here.

        Args:
            result: Plain JSON values, kept as they are now.
            version: A ``Version``, or any plain value, as for ``Run.observe``.

        Raises:
            Invalid: A part cannot be stored. The effect is completed without it; tell it again in plain
                values, with the parts that were good, or go on. Do not repeat the effect.
        """
        from .ledger import Version

        end = self._effect.then("completed")
        self._end = _record(end)
        refused: list[Exception] = []
        try:
            end = replace(end, version=None if version is None else Version.of(version))
            self._end = _record(end)
        except Exception as error:  # noqa: BLE001 - told below, when the rest is known to be stored
            refused.append(error)
        try:
            self._end = _record(replace(end, result=result))
        except Exception as error:  # noqa: BLE001 - as above
            refused.append(error)
        if refused:
            raise Invalid(
                f"{'; '.join(map(told_of, refused))}. {self._effect.name!r} is recorded as completed, without that: "
                "do not repeat it; call done again with plain JSON values and a version that is a str, or go on",
                where="done",
            ) from refused[0]

    def __enter__(self) -> Self:
        self._run.check()
        self._run.append_drafts((_record(self._effect),))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._ending(error)
        if end is None:
            return
        try:
            self._run.append_fact(end)
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"The end of {self._effect.name!r} could not be recorded: {told_of(failure)}")

    def _ending(self, error: BaseException | None) -> Draft | None:
        """What is recorded when the block was left; None leaves the outcome unknown."""
        if self._end is not None:
            return self._end
        if error is None:
            return _record(self._effect.then("completed"))
        if leaves_unknown(error):
            return None
        return _record(self._effect.then("failed", result={"error": told_of(error)}))


def _record(effect: Effect) -> Draft:
    return log.draft(effect.body(), kind="effect", format="segue", origin="tool", refs=effect.refs)


def acquire(
    log_: Log,
    *,
    format: str,
    policy: Policy = "reject",
    wait: timedelta | None = None,
    ttl: timedelta = TTL,
    id: str | None = None,
    keep_open: Collection[str] = (),
    prepare: Callable[[Run], tuple[Draft, ...]] | None = None,
) -> Generator[Pause, None, Run]:
    """
    Take a session's lease: a procedure whose pauses the caller drives, blocking or not.

    It ends with a run whose session is settled: calls that a crash left open have been answered.
    Closed early, it leaves neither a lease nor a place in the queue.
    """
    if policy not in POLICIES:
        raise Invalid(f"policy {policy!r} is none of {', '.join(POLICIES)}", where="policy")
    if not isinstance(ttl, timedelta) or not timedelta(milliseconds=100) <= ttl <= LEASE_MAX:
        raise Invalid("ttl must be a timedelta of 0.1 s to 100 years", where="ttl")
    if wait is not None and not isinstance(wait, timedelta):
        raise Invalid("wait must be a timedelta, or None: for ever", where="wait")
    keep_open = check_strings(keep_open, "keep_open")
    run_id = new_id() if id is None else check_name(id, "id")
    lease, is_again = yield from _take(log_, run_id, policy, wait, ttl, is_named=id is not None)
    run = Run(log_, lease, format, ttl)
    try:
        entries = () if id is None or is_again else _parting(log_, lease)
        entries += settlements(log_, format, keep_open=keep_open)
        if prepare is not None:
            entries += prepare(run)
        if entries:
            run.append_drafts(entries)
    except BaseException:
        run.release()
        raise
    return run


def _parting(log_: Log, lease: Lease) -> tuple[Draft, ...]:
    """What parts a run from an earlier one with its id, so that a rollback can tell what is whose; mostly nothing."""
    last = log_.read(after=log_.info().base, kinds=("message", GRANT), reverse=True, limit=1)
    if not last or last[0].kind == GRANT or last[0].run != lease.run:
        return ()
    return (log.draft({"run": lease.run, "fence": lease.fence}, kind=GRANT, format="segue", origin="system"),)


def _since(log_: Log, run: str) -> int:
    """The first seq that can be of the run that now has this id, and of none before it, here or in a parent."""
    info = log_.info()
    for entry in log_.iterate(after=info.base, upto=info.head, kinds=("message", GRANT), reverse=True, page=200):
        if entry.kind == GRANT or entry.run != run:
            return entry.seq + 1
    return info.base + 1


def _take(
    log: Log, run_id: str, policy: Policy, wait: timedelta | None, ttl: timedelta, *, is_named: bool
) -> Generator[Pause, None, tuple[Lease, bool]]:
    """The lease, and whether it was granted before: the same run has asked again."""
    ask = _Ask(log, run_id, policy, ttl)
    until = None if wait is None else time.monotonic() + wait.total_seconds()
    try:
        while True:
            # Read before asking: every grant since then is one run fewer before this one.
            fence = log.info().fence if policy == "enqueue" or is_named else 0
            answer = ask.once()
            if isinstance(answer, Lease):
                return answer, answer.fence == fence
            yield from _wait_turn(log, answer, until, fence)
    except BaseException:
        _give_back(log, run_id)
        raise


def _give_back(log: Log, run_id: str) -> None:
    """Whatever ended the wait: leave the queue, and the lease where an unknown outcome granted it."""
    log.engine.do(Release(log.scope, log.id, run_id, None))
    lease = log.info().lease
    if lease is not None and lease.run == run_id:
        log.engine.do(Release(log.scope, log.id, run_id, lease.fence))


class _Ask:
    """Asks for the lease, again with what the refusals taught: a dead holder, the run to interrupt."""

    def __init__(self, log: Log, run_id: str, policy: Policy, ttl: timedelta) -> None:
        self._log = log
        self._run_id = run_id
        self._policy = policy
        self._ttl_us = ttl // timedelta(microseconds=1)
        self._over: str | None = None
        self._dead: str | None = None

    def once(self) -> Lease | Queued:
        while True:
            try:
                answer = self._do()
            except Busy as busy:
                if self._learn(busy.run):
                    continue
                raise
            if isinstance(answer, Queued) and answer.run and self._is_dead(answer.run):
                continue
            return answer

    def _do(self) -> Lease | Queued:
        take = Take(
            self._log.scope,
            self._log.id,
            self._run_id,
            self._ttl_us,
            self._policy,
            holder.me(),
            self._over,
            self._dead,
            entries=self._retraction(),
        )
        try:
            return self._log.engine.do(take)  # type: ignore[no-any-return]
        except OutcomeUnknown:
            return self._log.engine.do(take)  # type: ignore[no-any-return]

    def _retraction(self) -> tuple[Draft, ...]:
        if self._policy != "rollback" or self._over is None:
            return ()
        body = {"run": self._over, "since": _since(self._log, self._over), "reason": "rollback"}
        return (log.draft(body, kind="retract", format="segue", origin="system", refs=("retract",)),)

    def _learn(self, run: str) -> bool:
        if self._is_dead(run):
            return True
        if self._policy in ("interrupt", "rollback") and run != self._over:
            self._over = run
            return True
        return False

    def _is_dead(self, run: str) -> bool:
        lease = self._log.info().lease
        if lease is None or lease.run != run or lease.holder == self._dead or not holder.is_dead(lease.holder):
            return False
        self._dead = lease.holder
        return True


def _wait_turn(log: Log, place: Queued, until: float | None, fence: int) -> Generator[Pause, None, None]:
    """Pause until it may be our turn: the lease is free, or the place in the queue must be renewed."""
    if until is not None and time.monotonic() >= until:
        raise QueueTimeout(
            place.run,
            waiting=place.before,
            message=f"the session did not become free in time (run {place.run!r} holds it, "
            f"{place.before} before this one); wait longer, or use policy='interrupt'",
        )
    asked = time.monotonic()
    pause, longest = POLL_SECONDS
    if log.engine.is_told:
        pause = longest = ASK_SECONDS  # we are told
    before, behind, shortest, me = place.before, 0, pause, holder.me()
    while True:
        now = time.monotonic()
        left = ASK_SECONDS - (now - asked)
        if until is not None:
            left = min(left, until - now)
        if left <= 0:
            return
        yield Pause(log.id, min(pause, left), behind)
        info = log.info()
        pause *= 1.5
        if info.fence != fence:
            before, fence = max(0, before - (info.fence - fence)), info.fence
            pause = shortest * (1 + before)
        # Who is far behind looks less often: a long queue must not be a crowd. What ends in this process is told.
        is_ours = info.lease is not None and info.lease.holder == me
        slowest = longest * (1 + before / 8)
        pause = slowest if is_ours else min(pause, slowest)
        is_free = info.lease is None or info.lease.state == "paused"
        if before == 0 and is_free:
            return
        behind = before - 1 if is_free else before  # so many runs give the lease back before it is ours


def settlements(log_: Log, format: str, *, keep_open: Collection[str] = ()) -> tuple[Draft, ...]:
    """Answers to the calls that a crash left open, so that no history is ever refused for them."""
    rules = formats.rules(format)
    if rules is None:
        return ()
    answers = [rules.settlement(call) for call in open_calls(log_, format) if call.id not in keep_open]
    return log.drafts(answers, None, format=format, origin="system") if answers else ()

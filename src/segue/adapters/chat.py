"""
The loop around a model's client: ask, store, call the tools, ask again.

Order, which is what makes a crash at any point harmless:
1. the question is stored, under an id that a retry gives again;
2. the model is asked with the view of the log;
3. its answer is stored once it is complete, under an id made of the provider's;
4. each call's result is stored as it comes; then 2.

So the log always ends in one of four states, and each can be taken up: a question, an answer with open
calls (the next run settles them, or makes them again where the tool may), results, an answer. What is asked is
never an error that a retry stores twice; what was not acknowledged is asked again.

The loop is written once (``_Loop``), as steps; ``Chat`` and ``AsyncChat`` drive it.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from segue import codec, formats
from segue.compaction import Compacted, Compaction, compaction_steps
from segue.errors import Invalid, LeaseLost, NotDone, NotFound, SegueError
from segue.formats import Call, call_ref
from segue.guard import calling
from segue.log import Log, draft
from segue.model import Entry, Usage, new_id
from segue.run import Run
from segue.steps import Do, Outcome, Use, ause, use
from segue.streaming import Accumulator, Answer, Delta, Deltas, StreamBroken, plain
from segue.view import PREFIX, PREFIX_KIND, View, ViewSpec, build, open_calls

from .tools import Toolbox, text_of

ROUNDS_MAX = 50
"""Most answers of the model in one turn, unless told otherwise."""

CUT_OFF = "[This call was cut off by the limit of tokens and was not made. Make it again, shorter.]"
ANCESTORS_MAX = 100


class Unfinished(NotDone):
    """The turn has used up its rounds, and the model still calls tools. ``go_on()`` gives it as many again."""


@dataclass(frozen=True)
class Reply:
    """
    What a turn came to.

    Attributes:
        text: The text of the last answer.
        messages: All messages of the turn after the question, as they are in the log.
        usage: Tokens of the model calls of this turn, those of earlier attempts at it included.
        stop: Why the last answer ended, in the provider's word.
        seq: Seq of the question.
    """

    text: str
    messages: list[Any]
    usage: Usage
    stop: str
    seq: int


class Ask(NamedTuple):
    """Call the model. Sent back: ``Outcome`` with the raw answer, or with None when a stream was collected."""

    open: Callable[[], Any]
    collect: Accumulator | None
    give_up: Callable[[BaseException], None]


Steps = Generator[Any, Any, Any]


class Dialect(Protocol):
    """How one API is spoken. Made for one chat; holds the client."""

    @property
    def format(self) -> str:
        """Whose messages."""

    def prefix(self) -> dict[str, Any]:
        """What stands before the messages of each request, as JSON."""

    def question(self, content: Any) -> Any:
        """A person's message."""

    def result(self, call: Call, text: str, *, is_error: bool) -> Any:
        """The result of a call."""

    def arguments(self, message: Any, call: str) -> Any:
        """The arguments of a call in a message; ValueError when they are no JSON."""

    def text(self, message: Any) -> str:
        """The text that people read in a message of the model."""

    def opener(self, view: View, log: Log, *, is_streamed: bool) -> Callable[[], Any]:
        """The call of the client that asks the model."""

    def accumulator(self) -> Accumulator:
        """What collects a streamed answer."""

    def answer(self, value: Mapping[str, Any]) -> Answer:
        """An answer that came whole."""

    def settled(self, answer: Answer, view: View, log: Log) -> list[Any]:
        """Drafts to store with an answer."""

    def recovers(self, error: Exception, log: Log) -> list[Any] | None:
        """Drafts to store before the same is asked again; None when the error stands."""

    def is_paused(self, stop: str) -> bool:
        """The provider wants to be asked again to go on."""

    def is_cut_off(self, stop: str) -> bool:
        """The answer hit a limit: calls in it are not to be trusted."""


@dataclass
class _Turn:
    seq: int = 0
    cut_off: frozenset[str] = frozenset()
    recovered: int = 0


@dataclass
class _Loop:
    """One chat's procedure, as steps."""

    run: Run
    dialect: Dialect
    tools: Toolbox
    rounds_max: int = ROUNDS_MAX
    compaction: Compaction | None = None
    deltas: Deltas = field(default_factory=Deltas)
    _has_begun: bool = False

    @property
    def log(self) -> Log:
        return self.run.log

    def send(self, content: Any, id: str | None, *, is_streamed: bool) -> Steps:
        """A turn, from the question to the answer; taken up where it was left when the id is known."""
        yield from self._begin()
        turn = _Turn()
        entry = draft(self.dialect.question(content), format=self.dialect.format, origin="user", id=id or new_id())
        if (yield Do(lambda: self._is_new(entry.id))):
            yield from self._answer_calls(turn)
            yield from self._compact()
        appended = yield Do(lambda: self.run.append_drafts((entry,)))
        turn.seq = appended.seqs[0]
        if not appended.new:
            yield Do(lambda: self._check_standing(turn.seq))
        return (yield from self._finish(turn, is_streamed=is_streamed))

    def go_on(self, *, is_streamed: bool) -> Steps:
        """The newest turn, taken up where it was left."""
        yield from self._begin()
        seq = yield Do(self._newest_question)
        return (yield from self._finish(_Turn(seq), is_streamed=is_streamed))

    def compact(self, compaction: Compaction) -> Steps:
        """A cut by hand."""
        found: Compacted = yield from compaction_steps(
            self.log, self.dialect.format, compaction, append=self.run.append_drafts, is_forced=True
        )
        return found

    def _finish(self, turn: _Turn, *, is_streamed: bool) -> Steps:
        for _ in range(self.rounds_max):
            yield from self._answer_calls(turn)
            reply = yield Do(lambda: self._reply(turn.seq))
            if reply is not None:
                return reply
            yield from self._round(turn, is_streamed=is_streamed)
        yield from self._answer_calls(turn)
        reply = yield Do(lambda: self._reply(turn.seq))
        if reply is None:
            raise Unfinished(
                f"the model still calls tools after {self.rounds_max} answers; go_on() gives it as many again"
            )
        return reply

    def _round(self, turn: _Turn, *, is_streamed: bool) -> Steps:
        """Ask the model once, and store what it answered."""
        view: View = yield Do(lambda: build(self.log, ViewSpec(self.dialect.format)))
        collect = self.dialect.accumulator() if is_streamed else None
        opener = yield Do(lambda: self.dialect.opener(view, self.log, is_streamed=is_streamed))
        outcome: Outcome = yield Ask(opener, collect, lambda why: self._keep_partial(collect, why))
        if outcome.error is not None:
            error = outcome.error
            mended = yield Do(lambda: self.dialect.recovers(error, self.log))
            if mended is None or turn.recovered:
                raise error
            turn.recovered += 1
            if mended:
                yield Do(lambda: self.run.append_drafts(tuple(mended)))
            return
        answer = self.dialect.answer(plain(outcome.value)) if collect is None else collect.answer
        if answer is None:
            raise StreamBroken("it ended early")
        entries = (*self._drafts(answer, view.head), *self.dialect.settled(answer, view, self.log))
        yield Do(lambda: self.run.append_drafts(entries))
        if self.dialect.is_cut_off(answer.stop):
            rules = formats.rules(self.dialect.format)
            assert rules is not None
            turn.cut_off = frozenset(call.id for message in answer.messages for call in rules.calls(message))

    def _drafts(self, answer: Answer, head: int) -> tuple[Any, ...]:
        """Entries of an answer: with the same id when the same answer comes again for the same view."""
        base = _short(f"{answer.id or new_id()}@{head}")
        more = [f"response:{answer.id}"] if answer.id else []
        more += [f"model:{answer.model}"] if answer.model else []
        more += [f"stop:{answer.stop}"] if answer.stop else []
        refs = [ref for ref in more if len(ref.encode()) <= 255]
        last = len(answer.messages) - 1
        made = []
        for n, message in enumerate(answer.messages):
            id = base if last == 0 else f"{base}.{n}"
            usage = answer.usage if n == last else None
            own = refs if n == last else refs[:1]
            made.append(draft(message, format=self.dialect.format, origin="model", id=id, refs=own, usage=usage))
        if not made:  # nothing was said, but tokens were counted, and the turn is over
            body = {"stop": answer.stop, "id": answer.id}
            made.append(draft(body, kind="segue.silence", format="segue", origin="model", id=base, usage=answer.usage))
        return tuple(made)

    def _keep_partial(self, collect: Accumulator | None, why: BaseException) -> None:
        """Keep what there is of an answer that never ended, for people; no view shows it."""
        self.deltas.end()
        partial = None if collect is None or collect.answer is not None else collect.partial
        if partial is None or not (partial.blocks or partial.text or partial.usage):
            return
        body = {
            "partial": True,
            "blocks": partial.blocks,
            "text": partial.text,
            "response": partial.id,
            "why": f"{type(why).__name__}: {why}"[:1_000],
        }
        entry = draft(body, kind="segue.partial", format="segue", origin="model", usage=partial.usage)
        try:
            self.run.append_drafts((entry,))
        except SegueError as error:
            why.add_note(f"what came of the answer could not be kept: {error}")

    # Calls

    def _answer_calls(self, turn: _Turn) -> Steps:
        calls: tuple[Call, ...] = yield Do(lambda: open_calls(self.log, self.dialect.format))
        for call in calls:
            if call.owner != "client":
                continue
            origin: Entry = yield Do(partial(self._entry_of, call))
            text, is_error = yield from self._made(call, origin, turn)
            value = self.dialect.result(call, text, is_error=is_error)
            if len(text.encode(errors="replace")) > codec.BODY_MAX_BYTES - 10_000:
                text = f"[The result has {len(text):,} characters, which is too much to keep. Ask for less.]"
                value = self.dialect.result(call, text, is_error=True)
            id = _short(f"result:{call.id}@{origin.seq}")
            result = draft(value, format=self.dialect.format, origin="tool", id=id)
            yield Do(partial(self.run.append_drafts, (result,)))

    def _made(self, call: Call, origin: Entry, turn: _Turn) -> Generator[Any, Any, tuple[str, bool]]:
        """Make one call: its text, and whether it is an error."""
        if call.id in turn.cut_off:
            return CUT_OFF, True
        found = self.tools.get(call.name)
        if found is None:
            return f"There is no tool {call.name!r}.", True
        try:
            arguments = self.dialect.arguments(origin.json(), call.id)
        except ValueError as error:
            return f"The arguments are no JSON object: {error}", True
        function = found.function
        yield Do(self.run.check)
        outcome: Outcome = yield Use(lambda: _called(function, arguments, call.id))
        if outcome.error is None:
            return text_of(outcome.value), False
        if isinstance(outcome.error, LeaseLost):
            raise outcome.error
        return f"{type(outcome.error).__name__}: {outcome.error}", True

    def _entry_of(self, call: Call) -> Entry:
        entry = self.log.last(call_ref(call.id))
        if entry is None:
            raise NotFound(f"call {call.id}")
        return entry

    # What stands in the log

    def _begin(self) -> Steps:
        """Tell the log what stands before the messages, when it is not what stood there before."""
        if not self._has_begun:
            body = codec.encode(self.dialect.prefix(), where="the request")
            last = yield Do(lambda: self.log.last(PREFIX))
            if last is None or last.digest != codec.digest(body):
                entry = draft(body, kind=PREFIX_KIND, format="segue", origin="system", refs=(PREFIX,))
                yield Do(lambda: self.run.append_drafts((entry,)))
            self._has_begun = True

    def _compact(self) -> Steps:
        if self.compaction is not None:
            yield from compaction_steps(self.log, self.dialect.format, self.compaction, append=self.run.append_drafts)

    def _is_new(self, id: str) -> bool:
        """Whether no entry of the last turns has the id: a retry follows what it repeats."""
        recent = self.log.read(reverse=True, limit=1_000)
        return all(entry.id != id for entry in recent)

    def _check_standing(self, seq: int) -> None:
        for omission in build(self.log, ViewSpec(self.dialect.format)).omitted:
            if omission.reason in ("retracted", "hollow") and omission.first <= seq <= omission.last:
                raise Invalid(f"the question (entry {seq}) was taken back; send it under another id", where="id")

    def _newest_question(self) -> int:
        rules = formats.rules(self.dialect.format)
        assert rules is not None
        for entry in self.log.iterate(kinds=("message",), reverse=True, page=200):
            if entry.body is not None and entry.format == self.dialect.format and rules.is_question(entry.json()):
                return entry.seq
        raise Invalid("there is no question to go on with; send() one")

    def _reply(self, seq: int) -> Reply | None:
        """The reply to the question at seq, when the turn is over."""
        rules = formats.rules(self.dialect.format)
        assert rules is not None
        messages: list[Any] = []
        usage = Usage()
        stop, is_over, text = "", False, ""
        for entry in self.log.iterate(after=seq):
            if entry.kind == "message" and entry.body is not None:
                value = entry.json()
                if entry.origin == "user" and rules.is_question(value):
                    is_over = True  # somebody asked something else since
                    break
                messages.append(value)
                if entry.origin == "model":
                    calls = rules.calls(value)
                    said = self.dialect.text(value)
                    text = said if said or calls else text
                    stop = next((ref[5:] for ref in entry.refs if ref.startswith("stop:")), "")
                    is_over = not calls and not rules.is_reasoning(value) and not self.dialect.is_paused(stop)
                else:
                    is_over, text = False, ""
            elif entry.kind == "segue.silence":
                is_over, stop = True, entry.json()["stop"]
            if entry.origin == "model" and entry.usage is not None:
                usage += entry.usage
        return Reply(text, messages, usage, stop, seq) if is_over else None


def _called(function: Callable[..., Any], arguments: Any, call: str) -> Any:
    if not isinstance(arguments, dict):
        raise TypeError(f"the arguments are {type(arguments).__name__}, not an object")
    with calling(call):
        value = function(**arguments)
    return _within(value, call) if inspect.isawaitable(value) else value


async def _within(value: Any, call: str) -> Any:
    with calling(call):
        return await value


def _short(id: str) -> str:
    return id if len(id.encode()) <= 200 else hashlib.sha256(id.encode()).hexdigest()


def root_of(log: Log) -> str:
    """The first ancestor's id: what forks of one conversation have in common, such as a cache."""
    id = log.id
    for _ in range(ANCESTORS_MAX):
        try:
            parent = log._replace(id=id).info().parent
        except NotFound:
            break
        if parent is None or parent.link != "fork":
            break
        id = parent.session
    return id


class Chat:
    """
    A conversation with a model, kept in a session.

    Attributes:
        deltas: The pieces of the answer under way; ``chat.deltas.follow()`` from any thread.
        reply: What the last turn came to, or None.
    """

    def __init__(self, run: Run, dialect: Dialect, tools: Sequence[Any], **options: Any) -> None:
        self._loop = _Loop(run, dialect, Toolbox(tools), **options)
        self.deltas = self._loop.deltas
        self.reply: Reply | None = None

    def send(self, question: Any, *, id: str | None = None) -> Reply:
        """
        Ask, let the model call its tools, and give its answer. Everything is in the log when it returns.

        Args:
            question: Text, or the provider's content blocks.
            id: Id of the question, for a caller that may ask again after an error or a crash: the same id takes the
                turn up where it was left, and stores nothing twice.

        Raises:
            LeaseLost: A newer run holds the session; stop.
            Unfinished: The turn used up its rounds; ``go_on()``.
            Invalid: The question was refused, or taken back.

        The client's own errors (a 429, a 529, a time-out) come as they are: the question is stored, nothing else.
        """
        return self._drained(self._loop.send(question, id, is_streamed=False))

    def stream(self, question: Any, *, id: str | None = None) -> Iterator[Delta]:
        """The same, giving the pieces of all answers of the turn as they come; afterwards ``reply`` is there."""
        return self._driven(self._loop.send(question, id, is_streamed=True))

    def go_on(self) -> Reply:
        """Take up the newest turn where it was left (a crash, an error, used-up rounds)."""
        return self._drained(self._loop.go_on(is_streamed=False))

    def compact(self, compaction: Compaction) -> Compacted:
        """Cut the history now, whatever its size; see ``segue.compaction``."""
        steps = self._loop.compact(compaction)
        found: Any = None
        try:
            while True:
                step = steps.send(found)
                found = step.work() if isinstance(step, Do) else use(step.work)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _drained(self, steps: Steps) -> Reply:
        for _ in self._driven(steps):
            pass
        assert self.reply is not None
        return self.reply

    def _driven(self, steps: Steps) -> Iterator[Delta]:
        self.reply = None
        found: Any = None
        try:
            while True:
                step = steps.send(found)
                if isinstance(step, Do):
                    found = step.work()
                elif isinstance(step, Use):
                    found = use(step.work)
                else:
                    found = yield from self._asked(step)
        except StopIteration as end:
            self.reply = end.value

    def _asked(self, ask: Ask) -> Generator[Delta, None, Outcome]:
        self.deltas.begin()
        stream: Any = None
        try:
            stream = ask.open()
            if ask.collect is None:
                return Outcome(stream)
            for event in stream:
                for delta in ask.collect.add(event):
                    self.deltas.put(delta)
                    yield delta
            if ask.collect.answer is None:
                raise StreamBroken("it ended early")  # noqa: TRY301
        except Exception as error:  # noqa: BLE001 - handed to the procedure, which decides
            ask.give_up(error)
            return Outcome(error=error)
        except BaseException as why:
            ask.give_up(why)
            raise
        finally:
            self.deltas.end()
            if ask.collect is not None and hasattr(stream, "close"):
                stream.close()
        return Outcome()


class AsyncChat:
    """
    A conversation with a model, kept in a session; from an event loop. See ``Chat``.

    Attributes:
        deltas: The pieces of the answer under way.
        reply: What the last turn came to, or None.
    """

    def __init__(self, run: Run, dialect: Dialect, tools: Sequence[Any], **options: Any) -> None:
        self._loop = _Loop(run, dialect, Toolbox(tools), **options)
        self._engine = run.log.engine
        self.deltas = self._loop.deltas
        self.reply: Reply | None = None

    async def send(self, question: Any, *, id: str | None = None) -> Reply:
        """See ``Chat.send``."""
        return await self._drained(self._loop.send(question, id, is_streamed=False))

    def stream(self, question: Any, *, id: str | None = None) -> AsyncIterator[Delta]:
        """See ``Chat.stream``. Close it (``aclose``) when you stop early."""
        return self._driven(self._loop.send(question, id, is_streamed=True))

    async def go_on(self) -> Reply:
        """See ``Chat.go_on``."""
        return await self._drained(self._loop.go_on(is_streamed=False))

    async def compact(self, compaction: Compaction) -> Compacted:
        """See ``Chat.compact``."""
        steps = self._loop.compact(compaction)
        found: Any = None
        try:
            while True:
                step = steps.send(found)
                found = await (self._engine.ahop(step.work) if isinstance(step, Do) else ause(step.work))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _drained(self, steps: Steps) -> Reply:
        async for _ in self._driven(steps):
            pass
        assert self.reply is not None
        return self.reply

    async def _driven(self, steps: Steps) -> AsyncIterator[Delta]:
        self.reply = None
        found: Any = None
        try:
            while True:
                step = steps.send(found)
                if isinstance(step, Do):
                    found = await self._engine.ahop(step.work)
                elif isinstance(step, Use):
                    found = await ause(step.work)
                else:
                    box: list[Outcome] = []
                    async for delta in self._asked(step, box):
                        yield delta
                    found = box[0]
        except StopIteration as end:
            self.reply = end.value

    async def _asked(self, ask: Ask, box: list[Outcome]) -> AsyncIterator[Delta]:
        self.deltas.begin()
        stream: Any = None
        try:
            stream = await ask.open()
            if ask.collect is not None:
                async for event in stream:
                    for delta in ask.collect.add(event):
                        self.deltas.put(delta)
                        yield delta
                if ask.collect.answer is None:
                    raise StreamBroken("it ended early")  # noqa: TRY301
            box.append(Outcome(stream if ask.collect is None else None))
        except Exception as error:  # noqa: BLE001 - handed to the procedure, which decides
            await self._engine.ahop(ask.give_up, error)
            box.append(Outcome(error=error))
        except BaseException as why:
            await asyncio.shield(asyncio.ensure_future(self._engine.ahop(ask.give_up, why)))
            raise
        finally:
            self.deltas.end()
            if ask.collect is not None and hasattr(stream, "close"):
                await stream.close()

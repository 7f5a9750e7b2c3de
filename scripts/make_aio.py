"""
Write src/segue/aio.py: the async face, generated from the sync classes so that the two cannot drift.

    python scripts/make_aio.py            write it
    python scripts/make_aio.py --check    exit 1 when it is not what would be written
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).parents[1] / "src" / "segue"
CLASSES = [
    ("database", "Database"),
    ("session", "Scope"),
    ("session", "Session"),
    ("run", "Run"),
    ("resume", "Resumed"),
]
FACES = {name: f"Async{name}" for _, name in CLASSES}

# Properties and quick calls that touch no store: plain, not awaited.
PLAIN = {"Database": {"scope"}}
# Written by hand in the template below, as they wait, stream or are contexts.
BY_HAND = {
    "Session": {"run", "history", "append", "follow"},
    "Run": {"anthropic", "append", "append_drafts", "effect", "openai"},
    "Resumed": {"run"},
    "Scope": {"iterate"},
    "Database": {"scopes"},
}
# Names that only the layers themselves use.
INNER = {"engine", "log"}

HEADER = '''"""
The async face: the same names as the sync one, from any event loop.

Written by scripts/make_aio.py; do not edit. Each call runs its blocking twin in one hop to a thread;
appends go straight to the engine's lane. Waiting (for a session's turn, for new entries) holds no
thread. Cancelling a call stops the waiting for it: what was under way is finished, and a lease that
it took is given back before the cancellation goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from types import TracebackType
from typing import Any, Self

from . import database
from .anew import Extract
from .briefing import Briefing
from .config import AgentConfig
from .database import PURGE_AFTER, Database, SweepReport
from .engine import Engine, Watch
from .errors import LeaseLost, MaskRefused, OutcomeUnknown
from .ledger import Observation, Version
from .log import Log
from .mask import Mask
from .model import Draft, Entry, Hit, Parent, Policy, ScopeKey, SessionInfo
from .resume import ConfigPolicy, Resumed
from .run import TTL, WAIT, Run, RunEffect
from .session import Scope, Session, SessionList, is_over
from .store import READ_MAX, Appended, Erased, Report, Store
from .view import View, ViewSpec
from .world import Sources


async def aopen(url: str | Store = "sqlite:///segue.db", **options: Any) -> AsyncDatabase:
    """Open a store for async callers; see ``segue.open``. Close it with ``await db.close()`` or ``async with``."""
    return AsyncDatabase(await asyncio.to_thread(database.open, url, **options))


async def _each(engine: Engine, items: Iterator[Any]) -> AsyncIterator[Any]:
    """An iterator that reads the store, taken a hundred items a hop."""

    def some() -> list[Any]:
        return list(islice(items, 100))

    while found := await engine.ahop(some):
        for item in found:
            yield item
'''

HAND = {
    "Database": '''
    def scopes(self) -> AsyncIterator[ScopeKey]:
        """See ``Database.scopes``."""
        return _each(self._sync.engine, self._sync.scopes())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
''',
    "Scope": '''
    def iterate(self, **filters: Any) -> AsyncIterator[SessionInfo]:
        """See ``Scope.iterate``."""
        return _each(self._engine, self._sync.iterate(**filters))
''',
    "Session": '''
    async def append(
        self,
        *items: Any,
        kind: str = "message",
        format: str | None = None,
        ids: Sequence[str] | None = None,
        expect: int | None = None,
        **options: Any,
    ) -> Appended:
        """See ``Session.append``."""
        entries = self._sync.drafts(items, ids, kind=kind, format=format, **options)
        return await _append(self._sync.log, entries, expect=expect)

    def history(
        self, *, after: int = 0, upto: int | None = None, kinds: Sequence[str] | None = None
    ) -> AsyncIterator[Entry]:
        """See ``Session.history``."""
        return _each(self._engine, self._sync.history(after=after, upto=upto, kinds=kinds))

    async def follow(
        self, *, after: int = 0, kinds: Sequence[str] | None = None, silence: timedelta | None = None
    ) -> AsyncIterator[Entry]:
        """See ``Session.follow``."""
        watch = Watch(self._engine, self._sync.id)
        try:
            quiet_since = time.monotonic()
            while True:
                entries = await self._engine.ahop(self._sync.log.next_after, after)
                for entry in entries:
                    after = entry.seq
                    if kinds is None or entry.kind in kinds:
                        yield entry
                if entries:
                    quiet_since = time.monotonic()
                elif is_over(quiet_since, silence):
                    return
                else:
                    await watch.await_(watch.pause(None if silence is None else silence.total_seconds()))
        finally:
            watch.close()

    def run(
        self,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        id: str | None = None,
        agent: AgentConfig | None = None,
        config: ConfigPolicy = "ask",
        keep_open: Collection[str] = (),
    ) -> AsyncRunContext:
        """See ``Session.run``: ``async with session.run() as run``, or ``run = await session.run()``."""
        return AsyncRunContext(
            self._engine,
            lambda: self._sync.acquire(
                policy=policy, wait=wait, ttl=ttl, id=id, agent=agent, config=config, keep_open=keep_open
            ),
        )
''',
    "Run": '''
    async def append(
        self,
        *items: Any,
        kind: str = "message",
        format: str | None = None,
        origin: str | None = None,
        ids: Sequence[str] | None = None,
        expect: int | None = None,
        **options: Any,
    ) -> Appended:
        """See ``Run.append``."""
        entries = self._sync.drafts(items, ids, kind=kind, format=format, origin=origin, **options)
        return await self.append_drafts(entries, expect=expect)

    async def append_drafts(self, entries: tuple[Draft, ...], *, expect: int | None = None) -> Appended:
        """See ``Run.append_drafts``."""
        try:
            return await _append(self._sync.log, entries, run=self._sync.id, fence=self._sync.fence, expect=expect)
        except LeaseLost as error:
            self._sync.lose(error)
            raise

    def anthropic(self, client: Any, **options: Any) -> Any:
        """See ``Run.anthropic``."""
        from .adapters.anthropic import chat

        return chat(self, client, **options)

    def openai(self, client: Any, **options: Any) -> Any:
        """See ``Run.openai``."""
        from .adapters.openai import chat

        return chat(self, client, **options)

    def effect(self, name: str, **options: Any) -> AsyncEffect:
        """See ``Run.effect``."""
        return AsyncEffect(self._engine, self._sync.effect(name, **options))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _finish(self.release())
''',
    "Resumed": '''
    def run(
        self,
        *,
        policy: Policy = "reject",
        wait: timedelta | None = WAIT,
        ttl: timedelta = TTL,
        id: str | None = None,
        keep_open: Collection[str] = (),
    ) -> AsyncRunContext:
        """See ``Resumed.run``."""
        return AsyncRunContext(
            self._engine,
            lambda: self._sync.acquire(policy=policy, wait=wait, ttl=ttl, id=id, keep_open=keep_open),
        )
''',
}

FOOTER = '''

class AsyncRunContext:
    """A run that is being started: await it, or enter it."""

    def __init__(self, engine: Engine, steps: Callable[[], Any]) -> None:
        self._engine = engine
        self._steps = steps
        self._run: AsyncRun | None = None

    def __await__(self) -> Any:
        return self._start().__await__()

    async def _start(self) -> AsyncRun:
        steps = await self._engine.ahop(self._steps)
        return AsyncRun(self._engine, await self._engine.adrive(steps))

    async def __aenter__(self) -> AsyncRun:
        self._run = await self._start()
        return self._run

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._run is not None:
            await self._run.__aexit__(kind, error, trace)


class AsyncEffect:
    """An effect around an ``async with`` block; see ``Run.effect``."""

    def __init__(self, engine: Engine, sync: RunEffect) -> None:
        self._engine = engine
        self._sync = sync

    async def __aenter__(self) -> RunEffect:
        await self._engine.ahop(self._sync.__enter__)
        return self._sync

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _finish(self._engine.ahop(self._sync.__exit__, kind, error, trace))


async def _finish(last: Any) -> None:
    """Let the last step of a context finish, however often its waiting is cancelled; then go on being cancelled."""
    task = asyncio.ensure_future(last)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = True
            if task.cancelled():
                break
    if cancelled:
        raise asyncio.CancelledError
    task.result()


async def _append(log: Log, entries: tuple[Draft, ...], **options: Any) -> Appended:
    op = log.append_op(entries, **options)
    try:
        return await log.engine.ado(op)  # type: ignore[no-any-return]
    except OutcomeUnknown:
        return await log.engine.ado(op)  # type: ignore[no-any-return]
'''


def main() -> int:
    text = _formatted(HEADER + "\n".join(_face(module, name) for module, name in CLASSES) + FOOTER)
    target = SRC / "aio.py"
    if "--check" in sys.argv:
        return int(not target.exists() or target.read_text() != text)
    target.write_text(text)
    return 0


def _formatted(text: str) -> str:
    ruff = str(Path(sys.executable).with_name("ruff"))
    fixed = subprocess.run(
        [ruff, "check", "--select", "F401,I,RUF100", "--fix", "--quiet", "--stdin-filename", str(SRC / "aio.py"), "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    return subprocess.run(
        [ruff, "format", "--stdin-filename", str(SRC / "aio.py"), "-"],
        input=fixed,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def _face(module: str, name: str) -> str:
    tree = ast.parse((SRC / f"{module}.py").read_text())
    source = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    first = (ast.get_docstring(source) or "").strip().splitlines()[0]
    lines = [
        "",
        f"class {FACES[name]}:",
        f'    """{first}',
        "",
        f"    The async face of ``{name}``.",
        '    """',
        "",
        f"    def __init__(self, engine: Engine, sync: {name}) -> None:"
        if name != "Database"
        else "    def __init__(self, sync: Database) -> None:",
        "        self._engine = engine" if name != "Database" else "        self._engine = sync.engine",
        "        self._sync = sync",
        "",
        "    def __repr__(self) -> str:",
        '        return f"<async {self._sync!r}>"',
        "",
        "    @property",
        f"    def sync(self) -> {name}:",
        '        """The same thing for blocking code."""',
        "        return self._sync",
        "",
    ]
    for field, kind in _attributes(source):
        lines += [
            "    @property",
            f"    def {field}(self) -> {kind}:",
            f'        """See ``{name}``."""',
            f"        return self._sync.{field}",
            "",
        ]
    for node in source.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in INNER:
            lines += [] if node.name in BY_HAND.get(name, set()) or _is_inner(node) else _method(name, node)
    return "\n".join(lines) + HAND.get(name, "")


def _is_inner(node: ast.FunctionDef) -> bool:
    return (ast.get_docstring(node) or "").startswith("(inner)")


def _attributes(source: ast.ClassDef) -> list[tuple[str, str]]:
    """Public attributes that the class declares by annotation."""
    return [
        (node.target.id, ast.unparse(node.annotation))
        for node in source.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not node.target.id.startswith("_")
    ]


def _method(owner: str, node: ast.FunctionDef) -> list[str]:
    returns = ast.unparse(node.returns) if node.returns else "None"
    face = FACES.get(returns.split(" | ")[0], "")
    shown = returns.replace(returns.split(" | ")[0], face) if face else returns
    doc = f'        """See ``{owner}.{node.name}``."""'
    if any(ast.unparse(d) == "property" for d in node.decorator_list):
        head = ["    @property", f"    def {node.name}(self) -> {shown}:", doc]
        return [*head, f"        return self._sync.{node.name}", ""]
    args = ast.unparse(node.args)
    call = ", ".join(_passed(node.args))
    if node.name in PLAIN.get(owner, set()):
        return [
            f"    def {node.name}({args}) -> {shown}:",
            doc,
            f"        return {face}(self._engine, self._sync.{node.name}({call}))",
            "",
        ]
    await_ = f"await self._engine.ahop(self._sync.{node.name}{', ' + call if call else ''})"
    if face:
        # A session that is handed in is of the async face.
        await_ = await_.replace(", what", ", getattr(what, 'sync', what)") if "what" in call else await_
        body = (
            [f"        found = {await_}", f"        return None if found is None else {face}(self._engine, found)"]
            if "None" in returns
            else [f"        return {face}(self._engine, {await_})"]
        )
    else:
        body = [f"        {'return ' if returns != 'None' else ''}{await_}"]
    return [f"    async def {node.name}({args}) -> {shown}:", doc, *body, ""]


def _passed(args: ast.arguments) -> list[str]:
    """How the arguments are passed on."""
    passed = [arg.arg for arg in args.args if arg.arg != "self"]
    passed += [f"*{args.vararg.arg}"] if args.vararg else []
    passed += [f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs]
    passed += [f"**{args.kwarg.arg}"] if args.kwarg else []
    return passed


if __name__ == "__main__":
    sys.exit(main())

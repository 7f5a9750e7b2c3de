r"""
One conversation into one session: what is there already is recognised, what is new is added behind it.

Entries of an import, in the order of the file:

- ``message``: a message, in its own bytes where the record holds them.
- ``import.pack``: some records, without the messages that were cut out of them; see ``packs``.
- ``import.part``: parts of a record that is too long for a pack.
- ``cut``: the tool's own compaction.

And behind them what describes a state of the file, which a later import adds anew: ``retract`` (branches that were
given up), ``import.usage`` (tokens that are told apart from the records), ``import.whole`` (the document, where it is
not made of records), ``import.file`` (how the file ends).

Ids are made of place and content, so the same record has the same id in every import. The first record that differs
from what is stored makes a fork there; a session that was continued in Segue is continued in a fork, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import msgspec

from segue import codec, formats
from segue.errors import Invalid, NotDone
from segue.formats import Shape
from segue.log import Checked
from segue.model import Draft, Entry, Parent, Usage
from segue.session import Scope, Session

from .conversation import Conversation, Record, Said
from .packs import PACK, PART, PIECE_MAX, Pack
from .report import FileReport, SessionReport

WHOLE, FILE, SPENT = "import.whole", "import.file", "import.usage"

STREAM = ("message", PACK, PART, "cut")
"""Kinds of the entries that follow the file."""

BATCH_ENTRIES = 900
BATCH_BYTES = 4 * 1024 * 1024
PIECE = codec.BODY_MAX_BYTES
RETRACT_MAX = 200_000
"""Most messages that one entry takes back: their numbers must fit into it."""


_ours = ("m.", "k.", "p.", "c.")
_encode = codec.encode
_ZERO = Usage()
_ANY = ("running", "idle", "paused", "completed", "archived")


class Writer:
    """
    Writes one conversation.

    Args:
        scope: The owner.
        talk: What to write.
        report: Where defects are told.
        is_dry: Compare and count, and write nothing.
    """

    def __init__(self, scope: Scope, talk: Conversation, report: FileReport, *, is_dry: bool = False) -> None:
        self.scope = scope
        self.talk = talk
        self.report = report
        self.is_dry = is_dry
        self.rules = formats.rules(talk.format)
        self.done = SessionReport("", talk.key, format=talk.format)
        self.session: Session | None = scope.get_key(talk.key)
        self.stored: Iterator[Entry] | None = None
        self.at = 0  # the last entry that was recognised
        self.head = 0
        self.batch: list[Draft] = []
        self.batch_bytes = 0
        self.told: dict[str, Usage] = {}
        self.key = talk.key
        self.open: dict[str, int] = {}  # calls without a result, by the record that made them
        self.last_us = 0
        self.pack = Pack()
        if self.session is not None:
            self._compare_with(self.session, 0)

    # The stream

    def run(self) -> SessionReport:
        """Write all of it."""
        for record in self.talk.records:
            self.put(record)
        self._finish()
        return self.done

    def put(self, record: Record) -> None:
        """The next record, with what was found in it."""
        self.done.records += 1
        seqs: list[int] = []
        calls: tuple[str, ...] = ()
        results: tuple[str, ...] = ()
        if record.cuts:
            self._cut(record)
        for n, one in enumerate(record.said):
            shape = None if self.rules is None else self.rules.shape(one.value)
            if shape is not None and not shape.is_plain:
                calls += tuple([call.id for call in shape.calls])
                results += shape.results + shape.server_results
            seq = self._message(record, n, one, shape)
            if seq:
                seqs.append(seq)
        if record.raw is not None:
            self._keep(record, record.raw)
        if self.talk.tree is not None:
            self.talk.tree.add(record.node, record.parent, group=record.group, seqs=seqs, calls=calls, results=results)

    def _message(self, record: Record, n: int, said: Said, shape: Shape | None) -> int:
        if not said.body or len(said.body) > PIECE:
            kind, why = (
                ("too-large", f"{len(said.body):,} bytes") if said.body else ("not-shown", "no entry can hold it")
            )
            self.report.note(kind, record.number, f"a message is kept, not shown: {why}")
            if said.usage is not None:
                self.talk.spent[said.usage_key or f"{self.talk.key}/{record.number}.{n}"] = said.usage
            return 0
        body, _, _, origin, us, usage, usage_key = said
        digest = codec.digest(body)
        id = f"m.{record.number}.{n}.{digest[:16].hex()}"
        refs = self._refs(shape, record.number)
        if usage_key and usage is not None:
            refs += (_usage_ref(usage_key),)
        if us is not None:
            self._clock(us, record.number)
        self.done.messages += 1
        format = record.format or self.talk.format
        return self._add(Draft("message", format, origin, body, digest, id, refs, us, usage), usage_key)

    def _refs(self, shape: Shape | None, number: int) -> tuple[str, ...]:
        if self.rules is None:
            return ()
        if shape is None:
            self.report.note("not-a-message", number, "kept, but not sent to a model")
            return ()
        if shape.is_plain or not (shape.calls or shape.results or shape.server_results or shape.compacts):
            return ()
        for call in shape.calls:
            if call.owner == "client":
                self.open[call.id] = number
        for id in shape.results:
            if self.open.pop(id, None) is None:
                self.report.note("result-without-call", number, id[:80])
        ids = [call.id for call in shape.calls] + [*shape.results, *shape.server_results]
        marks = self.rules.marks if shape.compacts else ()
        return tuple(dict.fromkeys([*map(formats.call_ref, ids), *marks]))

    def _clock(self, us: int, number: int) -> None:
        if us < self.last_us:
            self.report.note("clock-backwards", number)
        else:
            self.last_us = us

    def _keep(self, record: Record, raw: bytes) -> None:
        """The record's bytes, without the message that is an entry already, into the pack."""
        said = record.said
        cut = said[0] if len(said) == 1 and said[0].at is not None and 0 < len(said[0].body) <= PIECE else None
        size = len(raw) - (0 if cut is None else len(cut.body))
        if size > PIECE_MAX:
            places = range(0, len(raw), PIECE)
            for n, at in enumerate(places):
                self._add(_raw(PART, raw[at : at + PIECE], f"p.{record.number}.{n}"), "")
            self.pack.parts(record.number, len(places), ends=not record.is_part)
        elif cut is not None and cut.at is not None:
            self.pack.around(record.number, raw, cut.at, len(cut.body))
        else:
            self.pack.line(record.number, raw, ends=not record.is_part)
        if self.pack.is_full or record.usage is not None:
            self._close(record.usage, record.usage_key)

    def _close(self, usage: Usage | None = None, usage_key: str = "") -> None:
        """The pack is full, or the file ends: its records are an entry."""
        body, first = self.pack.take()
        refs = (_usage_ref(usage_key),) if usage_key and usage is not None else ()
        draft = _raw(PACK, body, f"k.{first}")._replace(refs=refs, usage=usage)
        self._add(draft, usage_key)

    def _cut(self, record: Record) -> None:
        """All that came before is history now; when nothing did, there is nothing to cut."""
        prefix = f"c.{record.number}."
        while self.stored is not None and self.at:
            following = self._peek()
            if following is None:
                self._go_on()
            elif following.id.startswith(prefix):
                self._matched(following, "")
                return
            elif not self._is_superseded(following, self.pack.body):
                self._diverge(prefix)
        upto = 0 if self.stored is not None else self.head + len(self.batch)
        if upto:
            body = _encode({"upto": upto, "summary": None, "reason": "import", "observations": []})
            digest = codec.digest(body)
            id = f"{prefix}{digest[:16].hex()}"
            self._add(Draft("cut", "segue", "import", body, digest, id, ("cut",)), "")

    # Known or new

    def _compare_with(self, session: Session, after: int) -> None:
        self.session = session
        self.stored = session.history(after=after, kinds=STREAM)
        self._following: Entry | None = None
        self.at = after

    def _peek(self) -> Entry | None:
        """The next stored entry of the import, or None."""
        while self._following is None and self.stored is not None:
            entry = next(self.stored, None)
            if entry is None:
                return None
            if entry.id.startswith(_ours):
                self._following = entry
        return self._following

    def _add(self, draft: Draft, usage_key: str) -> int:
        """The seq of the entry, which is stored already or added."""
        while self.stored is not None:
            following = self._peek()
            if following is None:
                self._go_on()
            elif following.id == draft.id:
                seq = self._matched(following, usage_key)
                if usage_key and draft.usage is not None and any(_beyond(draft.usage, self.told.get(usage_key, _ZERO))):
                    self.talk.spent[usage_key] = (
                        draft.usage
                    )  # the file told less of it then, or it was counted elsewhere
                return seq
            elif not self._is_superseded(following, draft.body if draft.kind == PACK else self.pack.body):
                self._diverge(draft.id)
        if usage_key and draft.usage is not None:
            draft = draft._replace(usage=self._more(draft.usage, usage_key))
        return self._append(draft)

    def _append(self, draft: Draft) -> int:
        """The seq of a new entry."""
        self.batch.append(draft)
        self.batch_bytes += len(draft.body)
        self.done.entries += 1
        if draft.usage is not None:
            self.done.usage += draft.usage
        seq = self.head + len(self.batch)
        if len(self.batch) >= BATCH_ENTRIES or self.batch_bytes > BATCH_BYTES:
            self._flush()
        return seq

    def _matched(self, entry: Entry, usage_key: str) -> int:
        self._following = None
        self.at = entry.seq
        if entry.usage is not None and usage_key:
            self.told[usage_key] = self.told.get(usage_key, _ZERO) + entry.usage
        return entry.seq

    def _is_superseded(self, entry: Entry, body: bytes) -> bool:
        """Whether it is a pack that ended where the file ended then; a longer one takes its place."""
        if entry.kind != PACK or entry.body is None or not body.startswith(entry.body):
            return False
        self._matched(entry, "")
        return True

    def _go_on(self) -> None:
        """All that is stored was recognised: what follows is new."""
        assert self.session is not None
        self.stored = None
        self.head = self.session.refresh().head
        if self.head > self.at and self._is_continued(self.session):
            self._fork(self.session, "continued", "it was continued in Segue")

    def _is_continued(self, session: Session) -> bool:
        later = session.history(after=self.at, kinds=("message", "note", "cut"))
        return any(not entry.id.startswith(_ours) for entry in later)

    def _diverge(self, id: str) -> None:
        """The file is not the stored one any more: what follows belongs into a fork at the last that they share."""
        assert self.session is not None
        mark = hashlib.sha256(id.encode()).hexdigest()[:16]
        self._fork(self.session, mark, f"the file differs from what was imported, behind entry {self.at}")

    def _fork(self, session: Session, mark: str, why: str) -> None:
        name = hashlib.sha256(f"{self.key}~{self.at}.{mark}".encode("utf-8", "replace")).hexdigest()[:24]
        self.key = f"{self.talk.key[:200]}~{self.at}.{name}"
        self.done.forked_from = session.id
        self.done.key = self.key
        found = self.scope.get_key(self.key)
        if found is not None:
            self._compare_with(found, self.at)
            return
        self.report.note(self._why(mark), 0, why)
        self.stored = None
        self.head = self.at
        self.session = None
        if not self.is_dry:
            about: dict[str, Any] = {"key": self.key, "metadata": self._metadata()}
            self.session = session.fork(self.at, **about) if self.at else self._create(self.key)

    def _why(self, mark: str) -> str:
        """How a fork came about: the file holds another branch, it was rewritten, or the session was continued."""
        if any(one.key.split("~")[0] == self.talk.key for one in self.report.sessions):
            return "branch"
        return "continued" if mark == "continued" else "rewritten"

    # Tokens

    @cached_property
    def _has_others(self) -> bool:
        """Whether there can be copies of a history: they can only be in sessions of the same tool."""
        tag = f"import:{self.talk.tool}"
        return bool(self.scope.list(tag=tag, unlisted=True, status=_ANY, limit=1).sessions)

    def _more(self, usage: Usage, key: str) -> Usage | None:
        """What the record tells beyond what was counted for its model call, here or in another session."""
        if key not in self.told:
            self.told[key] = self._counted(key) if self._has_others else _ZERO
        before = self.told[key]
        if usage == before:
            return None
        if before == _ZERO:
            self.told[key] = usage
            return usage if any(usage) else None
        more = _beyond(usage, before)
        self.told[key] = before + more
        return more if any(more) else None

    def _counted(self, key: str) -> Usage:
        """What the scope's sessions hold of a model call."""
        hits = self.scope.by_ref(_usage_ref(key))
        return sum((hit.entry.usage for hit in hits if hit.entry.usage is not None), _ZERO)

    # The store

    def _metadata(self) -> dict[str, Any]:
        about = {"tool": self.talk.tool, "key": self.talk.key, "path": self.report.path[-1000:]}
        return {**self.talk.metadata, "import": about}

    def _create(self, key: str) -> Session:
        talk = self.talk
        main = None if talk.parent is None else self.scope.get_key(talk.parent)
        return self.scope.open_key(
            key,
            format=talk.format,
            title=talk.title[:500],
            tags=(f"import:{talk.tool}",),
            metadata=self._metadata(),
            parent=None if main is None else Parent(main.id, main.info.head, "child"),
            listed=talk.parent is None and not talk.metadata.get("frame"),
        )

    def _flush(self) -> None:
        if self.batch and not self.is_dry:
            if self.session is None:
                self.session = self._create(self.key)
            # All of it was decoded before, or made here: it is not decoded once more.
            self.session.append(*(Checked(*draft) for draft in self.batch), expect=self.head)
        self.head += len(self.batch)
        self.batch = []
        self.batch_bytes = 0

    # The end

    def _finish(self) -> None:
        is_shorter = self._is_shorter()
        if self.pack.count and not is_shorter:
            self._close()
        is_shorter = is_shorter or (self.stored is not None and self._peek() is not None)
        if is_shorter and self._why("") != "branch":
            self.report.note("shorter", 0, "the file holds less than what was imported; nothing was taken away")
        for call, number in self.open.items():
            self.report.note("call-without-result", number, call[:80])
        if self.stored is not None:
            assert self.session is not None
            self.head = self.session.refresh().head
        self.stored = None
        if not self.done.records and self.session is None and not self.talk.tail and self.talk.whole is None:
            return
        if not is_shorter:
            self._retract()
        self._spent()
        self._whole()
        if not is_shorter:
            self._state()
        self._flush()
        self._about()

    def _is_shorter(self) -> bool:
        """Whether the last records are the beginning of a pack that is stored, so that the file lost its end."""
        if self.stored is None or not self.pack.count:
            return False
        following = self._peek()
        if following is None or following.kind == PACK:
            return False
        assert self.session is not None
        body, first = self.pack.body, f"k.{self.pack.first}."
        later = next((e for e in self.session.history(after=self.at, kinds=(PACK,)) if e.id.startswith(first)), None)
        return later is not None and later.body is not None and later.body.startswith(body)

    def _retract(self) -> None:
        tree = self.talk.tree
        if tree is None:
            return
        for kind, number, detail in tree.problems():
            self.report.note(kind, number, detail[:80])
        wanted = tree.off_path()
        self.done.abandoned = len(wanted)
        taken: set[int] = set()
        ours: list[int] = []
        hits = [] if self.session is None else self.session.by_ref("retract", reverse=True)
        for hit in hits:
            if hit.entry.seq not in taken and hit.entry.id.startswith("r.") and hit.entry.body is not None:
                ours.append(hit.entry.seq)
                taken.update(codec.decode(hit.entry.body)["seqs"])
        now = taken - {hit.entry.seq for hit in hits}
        if now == set(wanted):
            return
        back = [] if now <= set(wanted) else ours
        seqs = sorted({*(set(wanted) - (set() if back else now)), *back})
        for n in range(0, len(seqs), RETRACT_MAX):
            self._tail("retract", {"seqs": seqs[n : n + RETRACT_MAX]}, "r", ("retract",))

    def _spent(self) -> None:
        """Tokens that are told apart from the records: what is more than was counted by now."""
        for key, usage in self.talk.spent.items():
            before = self._counted(key)
            more = usage if before == _ZERO else _beyond(usage, before)
            if any(more):
                body = _encode({"of": key, "usage": (before + more)._asdict()})
                digest = codec.digest(body)
                ref = _usage_ref(key)
                self._append(
                    Draft(SPENT, "segue", "import", body, digest, f"u.{digest[:20].hex()}", (ref,), None, more)
                )

    def _whole(self) -> None:
        whole = self.talk.whole
        if whole is None:
            return
        name = hashlib.sha256(whole).hexdigest()[:40]
        pieces = [whole[n : n + PIECE] for n in range(0, len(whole), PIECE)] or [b""]
        drafts = [_raw(WHOLE, piece, f"d.{name}.{n}", exact=True) for n, piece in enumerate(pieces)]
        drafts[-1] = drafts[-1]._replace(refs=("import.whole",))
        self._new(drafts)

    def _state(self) -> None:
        talk = self.talk
        tail = talk.tail
        state: dict[str, Any] = {"records": self.done.records, "ends": talk.ends}
        if tail:
            body = _raw("import.tail", tail[:PIECE], "t")
            self._new([body._replace(id=f"t.{body.digest[:20].hex()}")])
            state["tail"] = f"t.{body.digest[:20].hex()}"
        elif talk.ends or talk.whole is not None:
            return  # nothing to be said: every record ends with a line feed
        self._tail(FILE, state, "f", ("import.file",))

    def _tail(self, kind: str, value: Any, letter: str, refs: tuple[str, ...]) -> None:
        body = _encode(value)
        digest = codec.digest(body)
        at = f"{self.head + len(self.batch)}." if kind == "retract" else ""
        self._new([Draft(kind, "segue", "import", body, digest, f"{letter}.{at}{digest[:20].hex()}", refs)])

    def _new(self, drafts: list[Draft]) -> None:
        """Entries that describe the file's state: once each."""
        if self.session is not None:
            self._flush()
            known = self.session.history(kinds=(drafts[0].kind,))
            ids = {entry.id for entry in known}
            drafts = [draft for draft in drafts if draft.id not in ids]
        for draft in drafts:
            self._append(draft)

    def _about(self) -> None:
        session, talk = self.session, self.talk
        if session is None:
            self.done.title = talk.title
            return
        self.done.id = session.id
        self.done.title = session.info.title
        title = talk.title[:500]
        if title and not session.info.title and not self.is_dry:
            try:
                self.done.title = session.rename(title).title
            except NotDone as error:
                self.report.note("title", 0, str(error)[:200])


def _beyond(usage: Usage, before: Usage) -> Usage:
    return Usage(*(max(0, now - then) for now, then in zip(usage, before, strict=True)))


def _usage_ref(key: str) -> str:
    ref = f"tokens:{key}"
    if len(ref.encode("utf-8", "replace")) <= 200 and ref.isprintable():
        return ref
    return f"tokens:#{hashlib.sha256(key.encode('utf-8', 'replace')).hexdigest()}"


def _raw(kind: str, body: bytes, id: str, *, exact: bool = False) -> Draft:
    digest = codec.digest(body)
    return Draft(kind, "raw", "import", body, digest, id if exact else f"{id}.{digest[:16].hex()}")


def check(body: bytes, value: Any) -> bool:
    """
    Whether the bytes are JSON that every reader gives back, so that they may be a message as they are.

    Args:
        body: What would be stored.
        value: What it was decoded to.
    """
    is_flat = body.count(b"[") + body.count(b"{") <= codec.DEPTH_MAX or _depth(value) <= codec.DEPTH_MAX
    if is_flat and _encode_fast(value) == body:
        return True  # written compactly, by the same rules: nothing in it could be read in two ways
    try:
        codec.check(body)
    except Invalid:
        return False
    return True


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        inner: list[Any] = []
        for one in level:
            if type(one) is dict:
                inner += one.values()
            elif type(one) is list:
                inner += one
        depth, level = depth + 1, [one for one in inner if type(one) in (dict, list)]
    return depth


def _encode_fast(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError):
        return b""

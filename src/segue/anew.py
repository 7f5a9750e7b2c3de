"""
Starting anew: a child session that begins with a summary of the old one, and takes no readings along.

The plain extract is made without a model: from what people asked, what was recorded as decided, what
was done to the world, and what is open. It quotes no tool result and no answer of the model, since
figures in them may be the very ones that no longer hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from . import codec, formats, ground, ledger, log, phrases, view
from .attributes import checked, inherited
from .config import AgentConfig
from .errors import HeadMoved, Invalid, NotFound
from .ground import Ground
from .ledger import Effect, canonical
from .log import Log
from .model import Entry, Parent, SessionInfo, check_name, check_type, from_us, new_id
from .phrases import clean
from .store import Create

DECISION = "decision"
"""Ref of an entry that records a decision: its body is a text, or an object with a ``text``."""

GOALS_MAX = 12
"""Most questions that the extract quotes: the first two and the newest."""

ITEMS_MAX = 20
"""Most items of each other sort; the rest is a number."""

TEXT_MAX = 400
"""Longest quotation, in characters."""

_SCAN_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Extract:
    """
    What a summary is made from.

    Attributes:
        info: The row of the session that is left.
        goals: What people asked for, oldest first.
        decisions: What was recorded as decided (entries with the ref ``decision``), oldest first.
        effects: What the session did to the world, each in its latest phase, oldest first.
        open_points: Calls without a result, and a last question without an answer, in words.
        sources: What it had read, by name; no values.
        more: How many goals, decisions, effects and sources there are beyond these.
        language: Of ``text()``.
    """

    info: SessionInfo
    goals: tuple[str, ...]
    decisions: tuple[str, ...]
    effects: tuple[Effect, ...]
    open_points: tuple[str, ...]
    sources: tuple[str, ...]
    more: Mapping[str, int]
    language: str
    _log: Log

    def messages(self) -> list[Any]:
        """The session's messages for the model, for a summary that a model writes."""
        return view.build(self._log, view.ViewSpec(format=self.info.format), self.info.head).messages

    def text(self) -> str:
        """The plain summary, in the language."""
        words = phrases.phrases(self.language)
        head = words.anew["heading"].format(
            title=clean(self.info.title or self.info.id, 200), at=phrases.utc_stamp(self.info.active_at)
        )
        parts = {
            "goals": self.goals,
            "decisions": self.decisions,
            "effects": [self._effect(effect) for effect in self.effects],
            "open": self.open_points,
            "sources": self.sources,
        }
        lines = [head]
        for name, items in parts.items():
            rest = self.more.get(name, 0)
            if items:
                lines += [words.anew[name], *(f"- {item}" for item in items)]
                lines += [words.more.format(n=f"{rest:,}")] if rest else []
        return "\n".join([*lines, words.anew["end"]])

    def _effect(self, effect: Effect) -> str:
        words = phrases.phrases(self.language)
        at = "?" if effect.at is None else phrases.utc_stamp(effect.at)
        source = f" · {clean(effect.source, 120)}" if effect.source else ""
        key = f" · {clean(effect.key)}" if effect.key and effect.phase == "started" else ""
        receipt = "" if effect.result is None or effect.phase == "started" else f" · {clean(_json(effect.result), 200)}"
        return f"{at} · {clean(effect.name)}{source} · {words.phases[effect.phase]}{key}{receipt}"


def start(
    log_: Log,
    info: SessionInfo,
    summary: str | Callable[[Extract], str] | None,
    *,
    id: str | None,
    language: str,
    options: Mapping[str, Any],
) -> SessionInfo:
    """See ``Session.start_anew``."""
    extract = extract_of(log_, info, language=language)
    text = extract.text() if summary is None else summary(extract) if callable(summary) else summary
    if not isinstance(text, str) or not text.strip():
        raise Invalid(f"a summary is a text that is not empty, not {type(text).__name__}", where="summary")
    made = _made(log_, info, id, dict(options))
    # Whoever asks again with the same id, after a crash in between, finds or makes each of these once.
    if made.head == 0:
        _link(log_, made.id)
        with suppress(HeadMoved):
            _begin(log_._replace(id=made.id), info, text, language)
        made = log_._replace(id=made.id).info()
    return made


def _made(log_: Log, info: SessionInfo, id: str | None, options: dict[str, Any]) -> SessionInfo:
    agent = options.pop("agent", None)
    if agent is not None:
        check_type(agent, AgentConfig, "agent")
    child = new_id() if id is None else check_name(id, "id")
    if id is not None:
        with suppress(NotFound):
            there = log_._replace(id=child).info()
            if there.parent is not None and (there.parent.session, there.parent.link) == (info.id, "anew"):
                return there
    create = Create(
        log_.scope,
        child,
        format=info.format,
        config=None if agent is None else agent.encode(),
        parent=Parent(info.id, info.head, "anew"),
        **{**inherited(info), **checked(options)},
    )
    made: SessionInfo = log_.engine.do(create)
    return made


def _link(log_: Log, child: str) -> None:
    """The old session's entry about the new one; its content depends on nothing but the new id."""
    refs = ("anew", *((f"session:{child}",) if len(child.encode()) <= 247 else ()))
    entry = log.draft(
        {"session": child}, kind="segue.anew", format="segue", origin="system", id=f"anew-{_short(child)}", refs=refs
    )
    log_.append((entry,))


def _begin(child: Log, info: SessionInfo, text: str, language: str) -> None:
    """The first entry: a cut whose summary stands for the session that was left; without a view, the bare text."""
    origin = {"session": info.id, "seq": info.head}
    rules = formats.rules(info.format)
    body: dict[str, Any]
    if rules is None:
        body = {"from": origin, "language": language, "text": text}
        entry = log.draft(body, kind="segue.anew", format="segue", origin="system", refs=("anew",))
    else:
        body = {
            "upto": 0,
            "summary": rules.summary(text),
            "reason": "anew",
            "observations": [],
            "from": origin,
            "language": language,
        }
        entry = log.draft(body, kind="cut", format="segue", origin="system", refs=("cut", "anew"))
    child.append((entry,), expect=0)


def _short(id: str) -> str:
    return id if len(id.encode()) <= 200 else codec.digest(id.encode()).hex()


def extract_of(log_: Log, info: SessionInfo, *, language: str = "en") -> Extract:
    """What a summary of the session is made from; see ``Extract``."""
    phrases.phrases(language)
    found = ground.find(log_, info.format, info.head)
    records = ground.records(log_, info.head)
    goals = list(_goals(log_, info, found))
    decisions = list(_decisions(log_, info, found))
    effects = _effects(records)
    sources = sorted({seen.source for seen in ground.live(found, records, by="source").observations})
    counts = {"decisions": len(decisions), "effects": len(effects), "sources": len(sources)}
    more = {name: n - ITEMS_MAX for name, n in counts.items() if n > ITEMS_MAX}
    if len(goals) > GOALS_MAX:
        more["goals"] = len(goals) - GOALS_MAX
        goals = [*goals[:2], *goals[2 - GOALS_MAX :]]
    return Extract(
        info,
        tuple(goals),
        tuple(decisions[-ITEMS_MAX:]),
        tuple(_ended(log_, info, effect) for effect in effects[-ITEMS_MAX:]),
        tuple(_open(log_, info, language)),
        tuple(clean(source, 120) for source in sources[:ITEMS_MAX]),
        more,
        language,
        log_,
    )


def _goals(log_: Log, info: SessionInfo, found: Ground) -> Iterator[str]:
    """What people asked, over the whole log: a cut hides from the model what it has dealt with, not from us."""
    rules = formats.rules(info.format)
    for entry in islice(log_.iterate(upto=info.head, kinds=("message",)), _SCAN_MAX):
        if rules is None or entry.format != info.format or entry.body is None or found.retracts.by(entry):
            continue
        value = codec.decode(entry.body)
        if entry.origin == "user" and rules.is_question(value):
            text = clean(_said(value), TEXT_MAX)
            if text:
                yield text


def _said(value: Any) -> str:
    """The text of a person's message, in any of the formats."""
    content = value.get("content") if isinstance(value, Mapping) else None
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = (block.get("text") for block in blocks if isinstance(block, Mapping))
    return " ".join(text for text in texts if isinstance(text, str))


def _decisions(log_: Log, info: SessionInfo, found: Ground) -> Iterator[str]:
    for hit in log_.by_ref(DECISION, upto=info.head):
        entry = hit.entry
        if entry.body is None or entry.format == "raw" or found.retracts.by(entry):
            continue
        value = entry.json()
        text = value.get("text") if isinstance(value, Mapping) else value
        if isinstance(text, str):
            yield clean(text, TEXT_MAX)


def _effects(records: Iterable[Entry]) -> list[Effect]:
    """Each effect in its latest phase, by when it began."""
    latest: dict[str, Effect] = {}
    began: dict[str, int] = {}
    for entry in records:  # newest first
        effect = ledger.effect_of(entry)
        if effect is not None:
            latest.setdefault(effect.id, effect)
            began[effect.id] = effect.seq
    return sorted(latest.values(), key=lambda effect: began[effect.id])


def _ended(log_: Log, info: SessionInfo, effect: Effect) -> Effect:
    """What a fork shares as begun may have ended in its parent since."""
    is_open = effect.phase == "started" and effect.seq <= info.base
    return (ledger.end_of(log_, effect) if is_open else None) or effect


def _open(log_: Log, info: SessionInfo, language: str) -> Iterator[str]:
    words = phrases.phrases(language)
    if formats.rules(info.format) is None:
        return
    for call in view.open_calls(log_, info.format, info.head)[:ITEMS_MAX]:
        yield words.anew["call"].format(name=clean(call.name, 80), call=clean(call.id))
    last = log_.read(kinds=("message",), upto=info.head, reverse=True, limit=1)
    if last and last[0].origin == "user":
        yield words.anew["unanswered"].format(at=phrases.utc_stamp(from_us(last[0].created_us)))


def _json(value: Any) -> str:
    return value if isinstance(value, str) else canonical(value)

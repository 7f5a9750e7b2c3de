"""
Words for people and models: the texts of stamps, differences and briefings, by language.

English and Chinese are here; register another with ``templates["fr"] = replace(templates["en"], ...)``.
A text is made from facts alone: the same facts give the same bytes.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from .errors import Invalid

_FIXED = re.compile(r"UTC(?:([+-])(\d{2}):([0-5]\d))?")
_FORMS = re.compile(r"<(\w+):([^|<>]*)\|([^|<>]*)>")
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrases:
    """
    One language. Each field is a ``str.format`` template; the comments name what may stand in it.

    Text of others (names of sources, versions, arguments) comes in cleaned: one line, bounded.
    """

    # Units and marks
    day: str  # n
    hour: str  # n
    minute: str  # n
    under_a_minute: str
    unit_join: str
    name_join: str  # between names in a list
    join: str  # between the parts of one sentence
    end: str  # at the end of a sentence
    more: str  # n: this many further ones are not listed
    weekdays: tuple[str, ...]  # Monday first
    kinds: dict[str, str]  # kinds of version; a kind that is not here is shown as it is
    observed: str  # at, source, version: the stamp on a reading
    observed_bare: str  # at, source: the stamp on a reading without a version
    written: str  # at, source, version: the stamp on a write that the other side compared
    written_bare: str  # at, source: the same, where the new version is not known
    window: str  # follows a stamp: the write was not compared by the other side
    stale_ground: str  # n, sources: follows a stamp: written although what it rests on no longer holds
    overwritten: str  # version: follows a stamp: written although the version was not the one seen

    # The note
    heading: str  # now, zone
    gap: str  # gap, day, at
    today: str
    yesterday: str
    days_ago: str  # n: midnights of the user's zone in between
    clock_back: str  # at
    readings: str  # n, parts
    counts: dict[str, str]  # by outcome: n
    told_before: str  # n
    left_out: str  # n
    left_out_at_least: str  # n
    unreadable: str  # n
    changed: str  # source, at, versions
    gone: str  # source, at
    denied: str  # source, at
    expired: str  # source, at, age
    unverifiable: str  # sources
    again: str  # call: how to read it again
    again_by_call: str  # call: the id of the call that read it
    masks: dict[str, str]  # by outcome: at, source, versions, again: stands in the place of a result
    mask_again: str  # call
    others_heading: str  # n
    other: str  # at, name, source, session, phase
    unknown_heading: str  # n
    unknown: str  # at, name, source, key
    approvals: str  # n, names
    calls: str  # n, names
    drift_heading: str
    size: str  # entries, tokens
    size_entries: str  # entries
    advice: dict[
        str, str
    ]  # continue, verify, verify_time (only time passed), start_anew: the sentence that ends the note
    short_advice: dict[str, str]  # the same for a person
    because: str  # reasons
    reasons: dict[str, str]  # why: gap, n, of
    phases: dict[str, str]  # of an effect

    # A new session's summary of the one it goes on from
    anew: dict[
        str, str
    ]  # heading: title, at; goals, decisions, effects, open, sources; call: name, call; unanswered: at; end

    # What differs between two configurations of an agent
    changes: dict[str, str]  # by what: name, old, new, detail


templates: dict[str, Phrases] = {}
"""The languages, by tag (``en``, ``zh``). Add your own; ``zh-CN`` falls back to ``zh``."""


def phrases(language: str) -> Phrases:
    """
    The words of a language; ``zh-Hans-CN`` finds ``zh``.

    Raises:
        Invalid: No such language is registered.
    """
    tag = str(language).replace("_", "-")
    while tag:
        if tag in templates:
            return templates[tag]
        tag = tag.rpartition("-")[0]
    known = ", ".join(sorted(templates))
    raise Invalid(
        f"no texts in {clean(language, 20)!r}; use one of {known}, or register it in segue.phrases.templates",
        where="language",
    )


def clean(text: object, limit: int = 80) -> str:
    """
    Text of unknown origin as one harmless line: no control, format or line characters, at most ``limit`` characters.

    What is cut off is marked by an ellipsis.
    """
    raw = str(text)
    if len(raw) <= limit and raw.isprintable() and "  " not in raw and raw == raw.strip():
        return raw
    shown = "".join(" " if unicodedata.category(c) in _UNSHOWN else c for c in raw[: limit * 4])
    shown = " ".join(shown.split())
    if len(shown) <= limit and len(raw) <= limit * 4:
        return shown
    return shown[: limit - 1] + "…"


def zone(name: str) -> tzinfo:
    """
    A time zone by its IANA name (``Asia/Shanghai``), or ``UTC``, ``UTC+08:00``.

    Raises:
        Invalid: Unknown here.
    """
    fixed = _FIXED.fullmatch(name) if isinstance(name, str) else None
    if fixed:
        away = timedelta(hours=int(fixed[2] or 0), minutes=int(fixed[3] or 0))
        return UTC if not away else timezone(-away if fixed[1] == "-" else away)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError) as error:
        raise Invalid(
            f"unknown time zone {clean(name, 40)!r}; use an IANA name such as Asia/Shanghai "
            "(where the system has no zone data: pip install tzdata)",
            where="time_zone",
        ) from error


def zone_name(there: tzinfo | str | None, now: datetime) -> str:
    """The name from which ``zone`` makes the zone again: of a zone without a name, its offset now."""
    if there is None:
        return "UTC"
    if isinstance(there, str):
        zone(there)
        return there
    key = getattr(there, "key", None)
    if isinstance(key, str):
        return key
    offset = now.astimezone(there).strftime("%z")
    return "UTC" if offset == "+0000" else f"UTC{offset[:3]}:{offset[3:5]}"


def local(moment: datetime, zone_name: str) -> str:
    """``2026-11-30 09:05 +08:00``: absolute, in the zone, to the minute."""
    there = moment.astimezone(zone(zone_name))
    offset = there.strftime("%z")
    return f"{there:%Y-%m-%d %H:%M} {offset[:3]}:{offset[3:5]}"


def utc_stamp(moment: datetime) -> str:
    """``2026-11-29T15:29Z``: absolute, UTC, to the minute."""
    return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M}Z"


def span(length: timedelta, words: Phrases) -> str:
    """A duration in its two largest units, rounded down: ``18 h 5 min``, ``3 天 4 小时``."""
    minutes = max(length, timedelta()) // timedelta(minutes=1)
    days, rest = divmod(minutes, 24 * 60)
    hours, minutes = divmod(rest, 60)
    units = [(days, words.day), (hours, words.hour), (minutes, words.minute)]
    first = next((i for i, (n, _) in enumerate(units) if n), None)
    if first is None:
        return words.under_a_minute
    return words.unit_join.join(unit.format(n=f"{n:,}") for n, unit in units[first : first + 2] if n)


def kind_name(kind: str, words: Phrases) -> str:
    """The name of a kind of version in the language."""
    return words.kinds.get(kind, clean(kind, 40))


class Counted(str):
    """A template with words that follow a number: ``{n} <n:reading is|readings are> too old``."""

    __slots__ = ()

    def format(self, *args: object, **given: object) -> str:
        """Like ``str.format``; what is given is never looked into for such words."""
        template = _FORMS.sub(lambda found: found[2] if str(given.get(found[1])) == "1" else found[3], self)
        return str.format(template, *args, **given)


def _phrases(**texts: Any) -> Phrases:
    names = {f.name for f in fields(Phrases)}
    if names != set(texts):
        raise Invalid(f"phrases do not fit: {sorted(names ^ set(texts))}")
    return Phrases(**texts)


templates["en"] = _phrases(
    day="{n} d",
    hour="{n} h",
    minute="{n} min",
    under_a_minute="under a minute",
    unit_join=" ",
    name_join=", ",
    join=", ",
    end=".",
    more="- and {n} more",
    weekdays=("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    kinds={"value": "version", "last-modified": "modified", "etag": "ETag"},
    observed="[observed {at} · {source} · {version}]",
    observed_bare="[observed {at} · {source}]",
    written="[written {at} · {source} · {version}]",
    written_bare="[written {at} · {source}]",
    window="[compared just before the write, not in one step with it: another writer may have come in between]",
    stale_ground="[written although {n} of the readings it rests on no longer hold: {sources}]",
    overwritten="[written over a version that this session had not seen: {version}]",
    heading="[Session resumed · now {now} ({zone})]",
    gap="{gap} since the last activity ({day}, {at})",
    today="today",
    yesterday="yesterday",
    days_ago="{n} days ago",
    clock_back="The last activity is dated {at}, later than now: a clock was moved; times may be wrong",
    readings="Readings of the world checked: {n} ({parts})",
    counts={
        "current": "{n} unchanged",
        "changed": "{n} changed",
        "gone": "{n} gone",
        "denied": "{n} no longer allowed",
        "expired": "{n} too old",
        "unverifiable": "{n} not verifiable",
    },
    told_before="{n} of them told before",
    left_out=Counted("{n} older <n:one|ones> not checked"),
    left_out_at_least="{n} or more older ones not checked",
    unreadable=Counted("{n} <n:record|records> of readings could not be understood"),
    changed="- Changed: {source}, read {at}, {versions}",
    gone="- Gone: {source}, read {at}, does not exist any more",
    denied="- No longer allowed: {source}, read {at}, may not be read now",
    expired="- Too old: {source}, read {at}, {age} ago",
    unverifiable="- Not verifiable: {sources}",
    again="; read it again with {call}",
    again_by_call="; read it again as call {call} did",
    masks={
        "changed": "[superseded since {at} at the latest · {source} · {versions}{again}]",
        "gone": "[superseded since {at} at the latest · {source} · does not exist any more]",
        "denied": "[withheld since {at} · {source} · may not be read any more]",
    },
    mask_again="; call {call} again",
    others_heading="Others acted on the same sources since: {n}",
    other="- {at}: {name} on {source} by session {session} ({phase})",
    unknown_heading="Own actions of unknown outcome (find out whether they happened before you repeat them): {n}",
    unknown="- {name}, begun {at}, source {source}, key {key}",
    approvals="Still waiting for a person's approval: {n} ({names})",
    calls="Calls without a result: {n} ({names})",
    drift_heading="The agent's configuration changed:",
    size=Counted("History: {entries} <entries:entry|entries>, about {tokens} <tokens:token|tokens>"),
    size_entries=Counted("History: {entries} <entries:entry|entries>"),
    advice={
        "continue": "",
        "verify": "What rests on these points may be outdated. Read again what your next answer uses.",
        "verify_time": "What was not checked here may be outdated; verify it before you state it as current.",
        "start_anew": "Much of the ground above no longer holds. Read again everything that your next answer uses; "
        "a new session with a summary is advised.",
    },
    short_advice={
        "continue": "Advice: continue",
        "verify": "Advice: verify first",
        "start_anew": "Advice: start anew with a summary",
    },
    because=" ({reasons})",
    reasons={
        "gap": "{gap} have passed",
        "changed": "{n} of {of} readings do not hold any more",
        "expired": Counted("{n} <n:reading is|readings are> too old"),
        "others": "others acted on the same sources",
        "unknown-effects": Counted("{n} <n:action has|actions have> an unknown outcome"),
        "drift": "the agent's configuration changed",
        "breaking-drift": "the agent's configuration changed in a way that breaks the history",
        "clock": "a clock was moved",
    },
    phases={"started": "outcome not known", "completed": "done", "failed": "failed"},
    anew={
        "heading": "[Summary of an earlier session · {title} · last active {at}]",
        "goals": "What was asked for:",
        "decisions": "What was decided:",
        "effects": "What was done to the world:",
        "open": "What is open:",
        "sources": "What was read then (read again what you use; no values were taken along):",
        "call": "the call {name} ({call}) has no result; whether it took effect is unknown",
        "unanswered": "the last question ({at}) has no answer",
        "end": "[End of the summary. Nothing in it says how the world is now.]",
    },
    changes={
        "name": "the agent's name changed from {old} to {new}",
        "version": "the agent's version changed from {old} to {new}",
        "model": "the model changed from {old} to {new}; signed thinking and reasoning are bound to the old one: "
        "the provider refuses or drops them, and the cached prefix is lost",
        "instructions": "the instructions changed ({old} to {new} characters)",
        "tool-gone": "the tool {name} is gone",
        "tool-gone-called": "the tool {name} is gone, and the history calls it",
        "tool-new": "the tool {name} is new",
        "tool-schema": "the tool {name} takes other arguments ({detail})",
        "tool-schema-called": "the tool {name} takes other arguments ({detail}), and the history calls it",
        "tool-text": "the tool {name} is described differently",
        "tool-order": "the tools come in another order, so the cached prefix is lost",
        "extra": "the setting {name} changed from {old} to {new}",
    },
)

templates["zh"] = _phrases(
    day="{n} 天",
    hour="{n} 小时",
    minute="{n} 分钟",
    under_a_minute="不到一分钟",
    unit_join=" ",
    name_join="、",
    join="，",
    end="。",
    more="- 另有 {n} 项",
    weekdays=("周一", "周二", "周三", "周四", "周五", "周六", "周日"),
    kinds={"value": "版本", "watermark": "水位", "last-modified": "修改时间", "etag": "ETag"},
    observed="[读取于 {at} · {source} · {version}]",
    observed_bare="[读取于 {at} · {source}]",
    written="[写入于 {at} · {source} · {version}]",
    written_bare="[写入于 {at} · {source}]",
    window="[仅在写入前比对过版本，比对与写入并非一步完成：其间可能有他人写入]",
    stale_ground="[写入时所依据的读数有 {n} 项已不成立：{sources}]",
    overwritten="[覆盖了本会话未见过的版本：{version}]",
    heading="[会话恢复 · 现在 {now}（{zone}）]",
    gap="距上次活动 {gap}（{day} {at}）",
    today="今天",
    yesterday="昨天",
    days_ago="{n} 天前",
    clock_back="上次活动的时间 {at} 晚于现在：时钟被调整过，时间可能不准",
    readings="已核对外部数据 {n} 项（{parts}）",
    counts={
        "current": "{n} 项未变",
        "changed": "{n} 项已变",
        "gone": "{n} 项已不存在",
        "denied": "{n} 项已无权读取",
        "expired": "{n} 项过旧",
        "unverifiable": "{n} 项无法核实",
    },
    told_before="其中 {n} 项此前已告知",
    left_out="另有 {n} 项较早的未核对",
    left_out_at_least="另有至少 {n} 项较早的未核对",
    unreadable="{n} 条读取记录无法解析",
    changed="- 已变：{source}，读取于 {at}，{versions}",
    gone="- 已不存在：{source}，读取于 {at}",
    denied="- 已无权读取：{source}，读取于 {at}",
    expired="- 过旧：{source}，读取于 {at}，已过 {age}",
    unverifiable="- 无法核实：{sources}",
    again="；重新读取：{call}",
    again_by_call="；按调用 {call} 的方式重新读取",
    masks={
        "changed": "[最迟自 {at} 起已失效 · {source} · {versions}{again}]",
        "gone": "[最迟自 {at} 起已失效 · {source} · 已不存在]",
        "denied": "[自 {at} 起不再显示 · {source} · 已无权读取]",
    },
    mask_again="；请重新调用 {call}",
    others_heading="期间他人对相同数据源的操作 {n} 项：",
    other="- {at}：{name}，{source}，会话 {session}（{phase}）",
    unknown_heading="结果未知的操作 {n} 项（可能已发生，也可能没有；重做之前先查明）：",
    unknown="- {name}，始于 {at}，数据源 {source}，键 {key}",
    approvals="仍在等待人工批准 {n} 项（{names}）",
    calls="没有结果的调用 {n} 项（{names}）",
    drift_heading="智能体配置已变：",
    size="历史 {entries} 条，约 {tokens} 个 token",
    size_entries="历史 {entries} 条",
    advice={
        "continue": "",
        "verify": "上文依据以上各项的结论可能已过时。回答要用到的数据，请先重新读取。",
        "verify_time": "这里没有核对到的内容可能已过时；当作现状陈述之前请先核实。",
        "start_anew": "上文的依据大多已不成立。回答要用到的数据，请全部重新读取；建议带摘要另开新会话。",
    },
    short_advice={
        "continue": "建议：继续",
        "verify": "建议：先核实",
        "start_anew": "建议：带摘要另开新会话",
    },
    because="（{reasons}）",
    reasons={
        "gap": "已过 {gap}",
        "changed": "{of} 项读数中 {n} 项不再成立",
        "expired": "{n} 项读数过旧",
        "others": "他人操作过相同数据源",
        "unknown-effects": "{n} 项操作结果未知",
        "drift": "智能体配置已变",
        "breaking-drift": "智能体配置的变化使历史不再适用",
        "clock": "时钟被调整过",
    },
    phases={"started": "结果未知", "completed": "已完成", "failed": "失败"},
    anew={
        "heading": "[此前会话的摘要 · {title} · 最后活动 {at}]",
        "goals": "提出过的要求：",
        "decisions": "已作的决定：",
        "effects": "对外部做过的操作：",
        "open": "未了的事项：",
        "sources": "当时读取过（要用的请重新读取；数值没有带过来）：",
        "call": "调用 {name}（{call}）没有结果，是否生效未知",
        "unanswered": "最后一个问题（{at}）还没有回答",
        "end": "[摘要完。其中没有任何内容说明现状。]",
    },
    changes={
        "name": "智能体名称由 {old} 改为 {new}",
        "version": "智能体版本由 {old} 改为 {new}",
        "model": "模型由 {old} 改为 {new}；签名思考与推理内容只对旧模型有效，供应商会拒绝或丢弃，前缀缓存也会失效",
        "instructions": "指令已变（{old} 到 {new} 字符）",
        "tool-gone": "工具 {name} 已移除",
        "tool-gone-called": "工具 {name} 已移除，而历史中调用过它",
        "tool-new": "新增工具 {name}",
        "tool-schema": "工具 {name} 的参数已变（{detail}）",
        "tool-schema-called": "工具 {name} 的参数已变（{detail}），而历史中调用过它",
        "tool-text": "工具 {name} 的说明已变",
        "tool-order": "工具顺序已变，前缀缓存会失效",
        "extra": "设置 {name} 由 {old} 改为 {new}",
    },
)

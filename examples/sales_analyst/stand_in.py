"""
A scripted stand-in for a model, for machines without a key.

It is a handful of rules: read the question and the note, decide on the next call, compose the answer.
Every number in its answers is taken from a result in the messages; it has no other memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .hearing import Done, Exchange, Refused, check, hear, names, readings
from .model import AnthropicForm, Call, Reply

ATTEMPTS_MAX = 3
_REGIONS = ("华东", "华南", "华北", "西南")
_SPLITS = (("SKU", "sku"), ("渠道", "channel"), ("大区", "region"))


class StandIn(AnthropicForm):
    """Rules in the place of a model. It speaks Chinese, and Anthropic's format."""

    name = "stand-in"

    def reply(self, instructions: str, tools: Sequence[dict[str, Any]], messages: list[Any]) -> Reply:
        """
        The next calls, or the answer.

        Raises:
            Refused: The vendor would refuse these messages, or a tool is missing.
        """
        check(messages)
        talk = hear(messages)
        said, wanted = _Turn(talk, instructions).next()
        offered = {tool["name"] for tool in tools}
        if not {name for name, _ in wanted} <= offered:
            raise Refused(f"tools: {', '.join(name for name, _ in wanted)} is called for, but not offered")
        made = sum(len(exchange.done) for exchange in talk)
        calls = [Call(f"toolu_{made + n:04d}", name, arguments) for n, (name, arguments) in enumerate(wanted, 1)]
        content: list[dict[str, Any]] = [{"type": "text", "text": said}] if said else []
        content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in calls]
        return Reply({"role": "assistant", "content": content}, said, calls)


Wanted = tuple[str, dict[str, Any]]


class _Turn:
    """One step of one exchange: what is asked, what is known, what is missing."""

    def __init__(self, talk: list[Exchange], instructions: str) -> None:
        self.talk = talk
        self.now = talk[-1]
        self.region = self._last_named(_REGIONS)
        self.month = self._month(instructions)
        self.known = {source for exchange in talk for one in exchange.done for source in one.sources}

    def next(self) -> tuple[str, list[Wanted]]:
        """What to say and what to call; without calls, what is said is the answer."""
        again = self._undone([call for s in self.now.stale_sources(self.known) for call in readings(self.talk[:-1], s)])
        if again:
            return "恢复说明指出这些数据已变，先重新读取。", again
        if "发布" in self.now.question:
            return self._publish()
        plan, compose = self._plan()
        missing = [call for call in plan if not self._has(call)]
        if missing:
            return "", missing
        return compose(), []

    def _plan(self) -> tuple[list[Wanted], Callable[[], str]]:
        asked = self.now.question
        months, regions = self._sales("month"), self._sales("region", region=None)
        if any(word in asked for word in ("为什么", "分析", "复盘")):
            first_look = [months] if not self._has(months) else [regions, self._targets(self.region)]
            return first_look, self._analysis
        by = next((column for word, column in _SPLITS if word in asked), None)
        if by is not None:
            region = None if by == "region" else self.region
            return [self._sales(by, region=region)], lambda: self._split(by)
        if "目标" in asked:
            return [regions, self._targets(None)], self._completion
        return [], lambda: "（替身模型）我只会看月度、大区、渠道、SKU 和目标，请换个问法。"

    # Calls

    def _sales(self, by: str, *, region: str | None = "") -> Wanted:
        arguments = {"by": by, "month": self.month}
        region = self.region if region == "" else region
        return "query_sales", arguments | ({"region": region} if region else {})

    def _targets(self, region: str | None) -> Wanted:
        return "read_targets", {"month": self.month} | ({"region": region} if region else {})

    def _has(self, wanted: Wanted) -> bool:
        return self.now.did(Call("", *wanted))

    def _undone(self, calls: list[Call]) -> list[Wanted]:
        found: list[Wanted] = []
        for call in calls:
            wanted = (call.name, call.arguments)
            if not self._has(wanted) and wanted not in found:
                found.append(wanted)
        return found

    # Publishing: compose from what was read, and read again when the tool says that the ground moved

    def _publish(self) -> tuple[str, list[Wanted]]:
        attempts = [n for n, one in enumerate(self.now.done) if one.call.name == "publish_report"]
        if not attempts:
            return "", [self._report()]
        last = self.now.done[attempts[-1]]
        if not last.is_error:
            return f"已发布：{last.value['file']}（{last.value['bytes']} 字节）。{self._headline()}。", []
        refused = [source for source in sorted(self.known) if names(last.text, source)]
        if not refused or len(attempts) >= ATTEMPTS_MAX:
            return f"没有发布：{last.text}", []
        since = Exchange(done=self.now.done[attempts[-1] + 1 :])
        wanted = [(c.name, c.arguments) for s in refused for c in readings(self.talk, s) if not since.did(c)]
        fitting = [w for i, w in enumerate(wanted) if w not in wanted[:i]]
        if fitting:
            return "发布被拒：依据的数据又变了。重新读取后再发布。", fitting
        return "", [self._report()]

    def _report(self) -> Wanted:
        title = f"{self.region} {self.month} 销售分析"
        body = f"{self._headline()}。\n\n{self._regions()}。\n\n{self._lines('sku')}"
        return "publish_report", {"title": title, "region": self.region, "body": body}

    # Answers

    def _analysis(self) -> str:
        target = next(row["target"] for row in self._rows("read_targets") if row["region"] == self.region)
        done = f"完成目标 {target:,.1f} 万元的 {self._sold() / target:.1%}"
        return f"{self._headline()}，{done}。\n{self._regions()}。"

    def _split(self, by: str) -> str:
        return "\n".join(part for part in (self._correction(), self._lines(by)) if part)

    def _completion(self) -> str:
        targets = {row["region"]: row["target"] for row in self._rows("read_targets")}
        sold = {row["name"]: row["sales"] for row in self._rows("query_sales", by="region")}
        parts = [f"{region} {sold[region] / targets[region]:.1%}" for region in sold if region in targets]
        return f"{self._month_name()}目标完成率：{'，'.join(parts)}。"

    def _headline(self) -> str:
        before, now = self._months(self._newest("query_sales", by="month"))
        return (
            f"{self.region} {self._month_name()}净销售额 {now['sales']:,.1f} 万元，"
            f"比上月 {before['sales']:,.1f} 万元{_moved(before['sales'], now['sales'])}"
        )

    def _regions(self) -> str:
        rows = sorted(self._rows("query_sales", by="region"), key=lambda row: row["sales"] / row["before"])
        parts = [f"{row['name']} {_percent(row['before'], row['sales'])}" for row in rows]
        worst = rows[0]["name"]
        return f"各大区同期：{'，'.join(parts)}。降幅最大的是{worst}" + (
            "，问题在本区" if worst == self.region else f"，不是{self.region}：更像全国性的淡季"
        )

    def _lines(self, by: str) -> str:
        rows = self._rows("query_sales", by=by)
        lost = sum(row["before"] - row["sales"] for row in rows)
        name = {"sku": " SKU ", "channel": "渠道", "region": "大区"}[by]
        lines = [
            f"  {row['name']}：{row['before']:,.1f} → {row['sales']:,.1f}（{_percent(row['before'], row['sales'])}）"
            for row in rows
        ]
        worst = rows[0]
        share = (worst["before"] - worst["sales"]) / lost if lost > 0 else 0.0
        where = "全国" if by == "region" else self.region
        return "\n".join(
            [
                f"{where}按{name}拆分（上月 → {self._month_name()}，万元）：",
                *lines,
                f"减少额的 {share:.0%} 来自「{worst['name']}」。",
            ]
        )

    def _correction(self) -> str:
        """What is different from what was said before, if this exchange has read the months again."""
        before = self._newest("query_sales", by="month", among=self.talk[:-1])
        now = self._newest("query_sales", by="month", among=self.talk[-1:])
        if before is None or now is None or before.value == now.value:
            return ""
        (_, old), (previous, new) = self._months(before), self._months(now)
        was, became = (_moved(previous["sales"], month["sales"]) for month in (old, new))
        return (
            f"先更正此前的结论：{self.region} {self._month_name()}"
            f"由 {old['sales']:,.1f} 万元重述为 {new['sales']:,.1f} 万元，环比由{was} 变为{became}。{self._regions()}。"
        )

    # What is known

    def _newest(self, tool: str, *, by: str | None = None, among: list[Exchange] | None = None) -> Done | None:
        for exchange in reversed(self.talk if among is None else among):
            for one in reversed(exchange.done):
                if one.call.name == tool and not one.is_error and by in (None, one.call.arguments.get("by")):
                    return one
        return None

    def _rows(self, tool: str, *, by: str | None = None) -> list[dict[str, Any]]:
        found = self._newest(tool, by=by)
        return [] if found is None else list(found.value["rows"])

    def _months(self, done: Done | None) -> tuple[dict[str, Any], dict[str, Any]]:
        assert done is not None
        before, now = done.value["rows"][-2:]
        return before, now

    def _sold(self) -> float:
        return float(self._months(self._newest("query_sales", by="month"))[1]["sales"])

    def _last_named(self, names: tuple[str, ...]) -> str:
        for exchange in reversed(self.talk):
            named = [name for name in names if name in exchange.question]
            if named:
                return named[0]
        return names[0]

    def _month(self, instructions: str) -> str:
        """The month that was named last, in the year that the instructions tell."""
        year = re.search(r"(20\d\d)-\d\d", instructions)
        for exchange in reversed(self.talk):
            named = re.search(r"(\d{1,2}) ?月", exchange.question)
            if named and year:
                return f"{year[1]}-{int(named[1]):02d}"
        return f"{year[1] if year else '2026'}-08"

    def _month_name(self) -> str:
        return f"{int(self.month[-2:])} 月"


def _percent(before: float, now: float) -> str:
    return f"{now / before - 1:+.1%}".replace("-", "−")


def _moved(before: float, now: float) -> str:
    return f"{'下降' if now < before else '上升'} {abs(now / before - 1):.1%}"

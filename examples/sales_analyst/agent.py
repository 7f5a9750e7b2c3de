"""The agent: its configuration, and one loop that drives whichever model there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import segue

from .model import Model, Reply, Result
from .tools import DEFINITIONS, Tools

STEPS_MAX = 12
"""Most requests to the model for one question."""


def instructions(year: int) -> str:
    """The system prompt. It holds no clock: what a prompt begins with must be the same on every day."""
    return (
        "你是一家净水设备公司的销售分析师，用中文回答，简短，只用工具给出的数字。"
        f"数据仓库里有 {year}-06 至 {year}-08 的订单，金额单位是万元，已扣除退货。"
        "每个工具结果末尾注明读取时间与数据版本；会话恢复的说明里若指出某项数据已变，先重新读取，再作答。"
    )


def config(model: Model, year: int) -> segue.AgentConfig:
    """What the history depends on; it is pinned to the session."""
    return segue.AgentConfig(
        name="sales-analyst",
        version="1",
        model=model.name,
        instructions=instructions(year),
        tools=model.definitions(DEFINITIONS),
    )


class Watcher(Protocol):
    """Sees each step as it happens."""

    def asked(self, question: str) -> None: ...

    def thought(self, reply: Reply) -> None: ...

    def used(self, result: Result) -> None: ...

    def answered(self, answer: str) -> None: ...


def answer(
    run: segue.Run,
    question: str,
    *,
    model: Model,
    tools: Tools,
    year: int,
    watch: Watcher,
    after_first: Callable[[], None] = lambda: None,
) -> str:
    """
    Answer one question in a run: ask the model, do what it calls for, until it answers.

    Every message is in the store before the next step is taken, so a crash loses none of them.

    Args:
        after_first: Called once, after the model's first reply.
    """
    watch.asked(question)
    run.append(model.question(question))
    definitions = model.definitions(DEFINITIONS)
    with tools.using(run):
        for step in range(STEPS_MAX):
            reply = model.reply(instructions(year), definitions, run.messages())
            run.append(reply.answer)
            if step == 0:
                after_first()
            if not reply.calls:
                watch.answered(reply.text)
                return reply.text
            watch.thought(reply)
            results = [tools.do(call) for call in reply.calls]
            run.append(*model.results(results))
            for result in results:
                watch.used(result)
    return "（没有在限定的步数内得出答案）"

"""What the tests of the Agents SDK's adapter share: stores, agents whose model answers by rule, workers."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, Model, ModelResponse, Usage, function_tool
from agents.testing import assistant_message, function_call


def url_of(kind: str, folder: Any) -> str:
    return {"memory": "memory:", "sqlite": f"sqlite:///{folder}/store.db", "jsonl": f"jsonl:{folder}/log"}[kind]


def text_of(item: Any) -> str:
    content = item.get("content", item.get("output", ""))
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class Echo(Model):
    """Answers "re: <the last question>", after some tool calls if the question names them ("call:2")."""

    def __init__(self, pause: float = 0.0, tool: str = "note") -> None:
        self.pause = pause
        self.tool = tool
        self.seen: list[list[Any]] = []

    async def get_response(self, system_instructions, input, *args, **kwargs):
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self.seen.append(items)
        await asyncio.sleep(self.pause)
        at = max(n for n, item in enumerate(items) if item.get("role") == "user")
        question = text_of(items[at])
        done = sum(item.get("type") == "function_call_output" for item in items[at:])
        wanted = int(question.split("call:")[1].split()[0]) if "call:" in question else 0
        if done < wanted:
            call = function_call(self.tool, {"text": f"{question}#{done}"}, call_id=f"{question}-{done}")
            output = [call]
        else:
            output = [assistant_message(f"re: {question}")]
        usage = Usage(requests=1, input_tokens=10, output_tokens=3, total_tokens=13)
        return ModelResponse(output=output, usage=usage, response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


def agent(model: Model, *tools: Any) -> Agent[Any]:
    return Agent("analyst", model=model, tools=list(tools))


@function_tool
def note(text: str) -> str:
    """Note it."""
    return f"noted {text}"


def turns(items: list[Any]) -> list[tuple[str, str]]:
    """(question, answer) pairs of a history of plain turns."""
    texts = [text_of(item) for item in items]
    return list(zip(texts[::2], texts[1::2], strict=True))

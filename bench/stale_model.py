"""The stories of stale readings, played by a real model: ``python -m bench.stale_readings --model ID``."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bench.stale_readings import WAYS, Count, Mind, Story, share, table

INSTRUCTIONS = (
    "You answer questions about figures named k0 to k7. Answer in the form 'k3 is 512', one for each figure asked for. "
    "Call read for a figure, and publish for a report; say 'Published.' when it is done."
)
TOOLS = [
    {
        "name": "read",
        "description": "The figure as it is now.",
        "input_schema": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
    },
    {
        "name": "publish",
        "description": "Publish a report. Refused when a figure is not as it was read: read it again, then publish.",
        "input_schema": {
            "type": "object",
            "properties": {"figures": {"type": "object", "additionalProperties": {"type": "integer"}}},
            "required": ["figures"],
        },
    },
]
HABIT = "the model"


def mind_of(client: Any, model: str) -> Mind:
    """Asks the model for its next step: its first call, or what it says."""

    def think(messages: list[Any]) -> tuple[str, Any]:
        answer = client.messages.create(
            model=model, max_tokens=500, system=INSTRUCTIONS, tools=TOOLS, messages=messages
        )
        for block in answer.content:
            if block.type == "tool_use" and block.name == "read":
                return "read", str(block.input["key"])
            if block.type == "tool_use":
                return "publish", {str(key): int(value) for key, value in block.input["figures"].items()}
        return "say", " ".join(block.text for block in answer.content if block.type == "text") or "–"

    return think


def play(model: str, stories: int, client: Any = None) -> str:
    """The first stories in every way, and their tables."""
    if client is None:
        import anthropic

        client = anthropic.Anthropic()
    counts: dict[tuple[str, str], Count] = {}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(stories):
            for way in WAYS:
                count = counts.setdefault((HABIT, way), Count())
                Story(seed, Path(folder), way, HABIT, count=count, mind=mind_of(client, model)).play()
    parts = [
        table(counts, "Stale answers", share("stale answers", "answers"), habits=[HABIT]),
        table(counts, "Stale reports", share("stale reports", "reports"), habits=[HABIT]),
        table(counts, "Needless readings", share("needless", "reads"), habits=[HABIT]),
    ]
    return "\n\n".join(parts)

"""
What the stand-in says. A question such as "do 3 #t17" makes it call the tool ``step`` three times, one or two at a
time, then answer. A result that says that the call was interrupted counts: the stand-in goes on with the next.
"""

from __future__ import annotations

import re

_STEPS = re.compile(r"do (\d+)(?: by (\d+))?(?: #(\S+))?")


def decide(question, done):
    """(text, calls): ``done`` results have come since the question."""
    match = _STEPS.search(question)
    steps, by, name = (int(match[1]), int(match[2] or 1), match[3] or "q") if match else (0, 1, "q")
    if done < steps:
        return f"Step {done + 1}.", [{"name": name, "n": n} for n in range(done + 1, min(done + by, steps) + 1)]
    return f"Done: {question[:60]} 完成", []


def tokens(value):
    import json

    return max(1, len(json.dumps(value)) // 4)

"""
``make rivals``: the comparable tests of the torture kit on other session layers, each in an environment of its own.

Versions are pinned in bench/requirements.json. Writes docs/data/rivals.json and the table in docs/torture.md.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.systems import PINS, ROOT, SYSTEMS, place_of, python_of, server_of

DATA = ROOT / "docs" / "data" / "rivals.json"
PAGE = ROOT / "docs" / "torture.md"
BEGIN, END = "<!-- rivals: written by make rivals -->", "<!-- rivals: end -->"
NAMES = (
    "segue_sqlite",
    "segue_postgres",
    "agents_sqlite",
    "agents_sqlalchemy",
    "langgraph_sqlite",
    "langgraph_postgres",
    "adk_sqlite",
    "adk_postgres",
)


def measure(name: str) -> dict[str, Any]:
    """The figures of one layer, by test."""
    system = SYSTEMS[name]
    python = python_of(system)
    with (
        tempfile.TemporaryDirectory() as folder,
        server_of(system.engine) as server,
        place_of(system, Path(folder), server) as place,
    ):
        command = [python, "-m", "bench.rivals.kit", system.layer, place, system.imports]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3_600, cwd=ROOT)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"test"')]
    if len(lines) < 4:
        print(done.stderr[-2_000:], file=sys.stderr)
    return {line.pop("test"): line for line in lines}


def write(figures: dict[str, dict[str, Any]]) -> None:
    """Keep the figures, and put the table between its marks."""
    date = dt.datetime.now(dt.UTC).date().isoformat()
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps({"date": date, "versions": PINS, "figures": figures}, indent=1) + "\n")
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    missing = [SYSTEMS[name].title for name in NAMES if name not in figures]
    told = f"\n\nNot measured yet: {'; '.join(missing)}." if missing else ""
    PAGE.write_text(f"{before}{BEGIN}\n\nMeasured {date}.\n\n{table(figures)}{told}\n\n{END}{after}", "utf-8")


def table(figures: dict[str, dict[str, Any]]) -> str:
    """The table as Markdown."""
    lines = [
        (
            "| | one session, 4 × 25 turns: stored / missing / torn / refused | kill -9 × 16: lost of acknowledged "
            "| 10 ids × 8 senders: stored / missing | 10 hostile values: same / refused / changed or gone |"
        ),
        "|---|---|---|---|---|",
    ]
    for name in NAMES:
        mine = figures.get(name)
        if mine is None:
            continue
        lines.append(f"| {SYSTEMS[name].title} | {_race(mine)} | {_kills(mine)} | {_once(mine)} | {_exact(mine)} |")
    return "\n".join(lines)


def _row(mine: dict[str, Any], test: str) -> dict[str, Any] | None:
    row: dict[str, Any] = mine.get(test, {"failed": "no answer"})
    return None if "failed" in row else row


def _race(mine: dict[str, Any]) -> str:
    row = _row(mine, "one_session")
    if row is None:
        return "not run"
    return f"{row['acknowledged']} / {row['missing']} / {row['torn']} / {sum(row['refused'].values())}"


def _kills(mine: dict[str, Any]) -> str:
    row = _row(mine, "kills")
    return "not run" if row is None else f"{row['lost']} of {row['acknowledged']}"


def _once(mine: dict[str, Any]) -> str:
    row = _row(mine, "once")
    return "not run" if row is None else f"{row['stored']} / {row['missing']}"


def _exact(mine: dict[str, Any]) -> str:
    row = _row(mine, "exact")
    if row is None:
        return "not run"
    answers = [value for value in row.values() if isinstance(value, str)]
    same = sum(value == "same" for value in answers)
    refused = sum(value.startswith("refused") for value in answers)
    return f"{same} / {refused} / {len(answers) - same - refused}"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(NAMES)}")
    names = parser.parse_args().names or list(NAMES)
    figures = json.loads(DATA.read_text())["figures"] if DATA.exists() else {}
    for name in names:
        figures[name] = measure(name)
        write(figures)  # after each, so that a run that is ended keeps what it had
        print(name, json.dumps(figures[name]), flush=True)


if __name__ == "__main__":
    main()

"""
``make rivals``: the comparable tests of the torture kit on other session layers, each in an environment of its own.

Versions are pinned in requirements.json. Writes docs/data/rivals.json and the table in docs/torture.md.
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

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests"))
DATA = ROOT / "docs" / "data" / "rivals.json"
PAGE = ROOT / "docs" / "torture.md"
BEGIN, END = "<!-- rivals: written by make rivals -->", "<!-- rivals: end -->"
PINS: dict[str, list[str]] = json.loads((HERE / "requirements.json").read_text())

# subject: (environment, its name in the table, where it keeps its data)
SUBJECTS = {
    "segue_sqlite": ("", "Segue, SQLite", "sqlite:///{folder}/segue.db"),
    "segue_postgres": ("", "Segue, PostgreSQL", "{postgres}"),
    "agents_sqlite": ("openai_agents", "OpenAI Agents SDK SQLiteSession", "{folder}/agents.db"),
    "agents_sqlalchemy": (
        "openai_agents",
        "OpenAI Agents SDK SQLAlchemySession, PostgreSQL",
        "postgresql+asyncpg://{server}",
    ),
    "langgraph_sqlite": ("langgraph", "LangGraph SqliteSaver", "{folder}/graph.db"),
    "langgraph_postgres": ("langgraph", "LangGraph PostgresSaver", "{postgres}"),
    "adk_sqlite": ("adk", "ADK DatabaseSessionService, SQLite", "sqlite+aiosqlite:///{folder}/adk.db"),
    "adk_postgres": ("adk", "ADK DatabaseSessionService, PostgreSQL", "postgresql+asyncpg://{server}"),
}


def python_of(environment: str) -> str:
    """The Python that has the layer; its environment is made if need be."""
    if not environment:
        return sys.executable
    folder = ROOT / ".venv-rivals" / environment
    python, stamp = folder / "bin" / "python", folder / ".pins"
    pins = "\n".join(PINS[environment])
    if not stamp.exists() or stamp.read_text() != pins:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS[environment]], check=True)
        stamp.write_text(pins)
    return str(python)


def measure(name: str) -> dict[str, Any]:
    """The figures of one layer, by test."""
    import servers

    environment, _, place = SUBJECTS[name]
    with tempfile.TemporaryDirectory() as folder, servers.private("postgres") as server:
        where = place.format(folder=folder, postgres=server.url, server=server.url.partition("://")[2])
        command = [python_of(environment), str(HERE / "kit.py"), name, where]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=3_600)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"subject"')]
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
    missing = [title for name, (_, title, _) in SUBJECTS.items() if name not in figures]
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
    for name, (_, title, _) in SUBJECTS.items():
        mine = figures.get(name)
        if mine is None:
            continue
        lines.append(f"| {title} | {_race(mine)} | {_kills(mine)} | {_once(mine)} | {_exact(mine)} |")
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
    answers = [value for value in row.values() if isinstance(value, str)][1:]
    same = sum(value == "same" for value in answers)
    refused = sum(value.startswith("refused") for value in answers)
    return f"{same} / {refused} / {len(answers) - same - refused}"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(SUBJECTS)}")
    names = parser.parse_args().names or list(SUBJECTS)
    figures = json.loads(DATA.read_text())["figures"] if DATA.exists() else {}
    for name in names:
        figures[name] = measure(name)
        write(figures)  # after each, so that a run that is ended keeps what it had
        print(name, json.dumps(figures[name]), flush=True)


if __name__ == "__main__":
    main()

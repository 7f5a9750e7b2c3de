"""
The systems of the benchmark and of the rivals' torture tests: which class, in whose environment, at what place.

To add one: write its class in ``bench/layers/``, pin its packages in ``bench/requirements.json``, add a line here.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "tests"))
PINS: dict[str, list[str]] = json.loads((HERE / "requirements.json").read_text())
"""Packages by environment; "" is Segue's own."""


class System(NamedTuple):
    """
    One way to keep sessions.

    Attributes:
        title: Its name in the tables.
        engine: What it keeps them in: sqlite, files, postgres, mysql or redis.
        layer: ``module.Class`` of bench/layers.
        place: Where; ``{folder}``, ``{url}`` and ``{server}`` (the URL without its scheme) are filled in.
        environment: Whose packages it needs, by the names of bench/requirements.json.
        imports: What its user imports, for the import time and before processes are forked.
        tasks: The layer that many tasks of one process use, if it is another.
        turns: How many turns it is filled with to count bytes.
        sessions: Most sessions that it is filled with to list some.
    """

    title: str
    engine: str
    layer: str
    place: str
    environment: str = ""
    imports: str = ""
    tasks: str = ""
    turns: int = 1_000
    sessions: int = 100_000


_SEGUE, _ASYNC = "segue.Segue", "segue.SegueAsync"
_ASYNCPG = "postgresql+asyncpg://{server}"

SYSTEMS = {
    "floor_sqlite": System("by hand: sqlite3", "sqlite", "by_hand.Sqlite", "{folder}/hand.db", "", "sqlite3"),
    "kept_sqlite": System(
        "by hand, all that Segue keeps: sqlite3", "sqlite", "by_hand.SqliteKept", "{folder}/kept.db", "", "sqlite3"
    ),
    "segue_sqlite": System(
        "Segue, SQLite", "sqlite", _SEGUE, "sqlite:///{folder}/segue.db", "", "segue,segue.stores.sqlite", _ASYNC
    ),
    "agents_sqlite": System(
        "OpenAI Agents SDK SQLiteSession", "sqlite", "agents.Sqlite", "{folder}/agents.db", "openai_agents", "agents"
    ),
    "langgraph_sqlite": System(
        "LangGraph SqliteSaver", "sqlite", "langgraph.Sqlite", "{folder}/graph.db", "langgraph",
        "langgraph.graph,langgraph.checkpoint.sqlite", turns=250,
    ),
    "adk_sqlite": System(
        "ADK DatabaseSessionService, SQLite", "sqlite", "adk.Adk", "sqlite+aiosqlite:///{folder}/adk.db", "adk",
        "google.adk.sessions,google.adk.events", turns=500,
    ),
    "agno_sqlite": System(
        "Agno SqliteDb", "sqlite", "agno.Sqlite", "{folder}/agno.db", "agno", "agno.agent,agno.db.sqlite", turns=500
    ),
    "floor_files": System("by hand: lines of a file", "files", "by_hand.Lines", "{folder}/lines", "", "json"),
    "segue_jsonl": System(
        "Segue, JSON lines", "files", _SEGUE, "jsonl:{folder}/sessions", "", "segue,segue.stores.jsonl", _ASYNC,
        sessions=2_000,
    ),
    "json_file": System("a JSON file rewritten each turn", "files", "by_hand.JsonFile", "{folder}/json", "", "json"),
    "floor_postgres": System("by hand: psycopg", "postgres", "by_hand.Postgres", "{url}", "", "psycopg"),
    "kept_postgres": System(
        "by hand, all that Segue keeps: psycopg", "postgres", "by_hand.PostgresKept", "{url}", "", "psycopg"
    ),
    "segue_postgres": System(
        "Segue, PostgreSQL", "postgres", _SEGUE, "{url}", "", "segue,segue.stores.postgres", _ASYNC
    ),
    "agents_sqlalchemy": System(
        "OpenAI Agents SDK SQLAlchemySession, PostgreSQL", "postgres", "agents.SqlAlchemy", _ASYNCPG, "openai_agents",
        "agents.extensions.memory",
    ),
    "langgraph_postgres": System(
        "LangGraph PostgresSaver", "postgres", "langgraph.Postgres", "{url}", "langgraph",
        "langgraph.graph,langgraph.checkpoint.postgres", turns=250,
    ),
    "adk_postgres": System(
        "ADK DatabaseSessionService, PostgreSQL", "postgres", "adk.Adk", _ASYNCPG, "adk",
        "google.adk.sessions,google.adk.events", turns=500,
    ),
    "agno_postgres": System(
        "Agno PostgresDb", "postgres", "agno.Postgres", "postgresql+psycopg://{server}", "agno",
        "agno.agent,agno.db.postgres", turns=500,
    ),
    "floor_mysql": System("by hand: PyMySQL", "mysql", "by_hand.Mysql", "{url}", "", "pymysql"),
    "kept_mysql": System(
        "by hand, all that Segue keeps: PyMySQL", "mysql", "by_hand.MysqlKept", "{url}", "", "pymysql"
    ),
    "segue_mysql": System("Segue, MariaDB", "mysql", _SEGUE, "{url}", "", "segue,segue.stores.mysql", _ASYNC),
    "floor_redis": System("by hand: redis-py", "redis", "by_hand.Redis", "{url}", "", "redis"),
    "kept_redis": System(
        "by hand, all that Segue keeps: redis-py", "redis", "by_hand.RedisKept", "{url}", "", "redis"
    ),
    "segue_redis": System("Segue, Redis", "redis", _SEGUE, "{url}", "", "segue,segue.stores.redis", _ASYNC),
    "agents_redis": System(
        "OpenAI Agents SDK RedisSession", "redis", "agents.Redis", "{url}", "openai_agents",
        "agents.extensions.memory.redis_session",
    ),
}  # fmt: skip

EMBEDDED = ("sqlite", "files")


class NotHere(Exception):
    """This system cannot be measured here; the text says why."""


def python_of(system: System) -> str:
    """
    The Python that has the system; its environment is made if need be.

    Raises:
        NotHere: It cannot be installed, or is not built yet.
    """
    if not system.environment:
        for module in system.imports.split(","):
            if importlib.util.find_spec(module) is None:
                raise NotHere(f"there is no module {module}")
        return sys.executable
    folder, pins = ROOT / ".venv-rivals" / system.environment, PINS[system.environment]
    python, stamp = folder / "bin" / "python", folder / ".pins"
    if not stamp.exists() or stamp.read_text() != "\n".join(pins):
        for command in ([sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "--quiet", *pins]):
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise NotHere(f"cannot be installed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        stamp.write_text("\n".join(pins))
    return str(python)


@contextlib.contextmanager
def server_of(engine: str) -> Iterator[str]:
    """The URL of a private server of that kind ("" for what lives in files), with the settings of a fresh install."""
    if engine in EMBEDDED:
        yield ""
        return
    import servers

    try:
        servers.RECIPES[engine].find()
    except servers.Missing as missing:
        raise NotHere(str(missing)) from None
    with servers.private(engine) as server:
        yield server.url


@contextlib.contextmanager
def place_of(system: System, folder: Path, server: str) -> Iterator[str]:
    """A fresh place for the system: in the folder, or a fresh database on the server."""
    if system.engine in EMBEDDED:
        yield system.place.format(folder=folder)
        return
    import servers

    with servers.RECIPES[system.engine].fresh(server) as url:
        yield system.place.format(url=url, server=url.partition("://")[2])

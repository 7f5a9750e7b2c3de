"""The benchmark's figures as a file, as tables and as a picture."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from bench.picture import picture
from bench.systems import SYSTEMS

BEGIN, END = "<!-- bench: written by make bench -->", "<!-- bench: end -->"
NEWEST = "newest 20"
ENGINES = {
    "sqlite": "SQLite",
    "files": "Files",
    "postgres": "PostgreSQL",
    "mysql": "MariaDB",
    "redis": "Redis",
}


def write(figures: dict[str, Any], out: Path) -> None:
    """Write data/bench.json and data/bench.svg, and put the tables between the marks of benchmark.md."""
    data = out / "data"
    data.mkdir(parents=True, exist_ok=True)
    (data / "bench.json").write_text(compact(figures), "utf-8")
    shown = Figures(figures)
    (data / "bench.svg").write_text(picture(shown), "utf-8")
    page = out / "benchmark.md"
    text = page.read_text("utf-8") if page.exists() else f"{BEGIN}\n{END}\n"
    before, _, rest = text.partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n\n{tables(shown)}\n\n{END}{rest.partition(END)[2]}", "utf-8")


def compact(figures: dict[str, Any]) -> str:
    """As JSON, with each sample list on a line of its own."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.4g}")
        if isinstance(value, dict):
            return {name: rounded(each) for name, each in value.items()}
        return [rounded(each) for each in value] if isinstance(value, list | tuple) else value

    def text(value: Any, depth: int) -> str:
        plain = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, dict) or not value or len(plain) < 100:
            return plain
        inner = ",\n".join(f"{' ' * depth}{json.dumps(name)}: {text(each, depth + 1)}" for name, each in value.items())
        return f"{{\n{inner}\n{' ' * (depth - 1)}}}"

    return text(rounded(figures), 1) + "\n"


class Figures:
    """Medians of what was measured, by system."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self.raw = figures
        self.names = [name for name in SYSTEMS if name in figures["calls"] or name in figures["crowds"]]
        self.heads: list[int] = list(figures["sizes"]["heads"])

    def seconds(self, name: str, what: str, kind: str = "seconds") -> float | None:
        """Median over the rounds; ``cpu`` is the caller's processor time."""
        return _median([each[kind] for each in self.raw["calls"].get(name, {}).get(what, [])])

    def ratio(self, name: str, what: str) -> float | None:
        """Median of the ratios to the floor, each from the floors right before and after."""
        found = self.raw["calls"].get(name, {}).get(what, [])
        return _median([each["ratio"] for each in found if "ratio" in each])

    def to_kept(self, name: str, what: str) -> float | None:
        """Median of the ratios to what is written by hand and keeps the same, round by round."""
        calls, kept = self.raw["calls"], f"kept_{SYSTEMS[name].engine}"
        pairs = zip(calls.get(name, {}).get(what, []), calls.get(kept, {}).get(what, []), strict=False)
        return _median([mine["seconds"] / theirs["seconds"] for mine, theirs in pairs])

    def growth(self, name: str) -> float | None:
        """An append at the longest history to one at the shortest, round by round."""
        first, last = (self.raw["calls"].get(name, {}).get(f"append at {head}", []) for head in self._ends)
        return _median([b["seconds"] / a["seconds"] for a, b in zip(first, last, strict=False)])

    @property
    def _ends(self) -> tuple[int, int]:
        return self.heads[0], self.heads[-1]

    def crowd(self, name: str, what: str) -> dict[str, Any] | None:
        """Rate and longest wait: medians; damage: the sum of all rounds."""
        runs = self.raw["crowds"].get(name, {}).get(what, [])
        if not runs:
            return None
        sums = ("turns", "refused", "lost", "torn", "interleaved")
        medians = ("per_second", "longest", "slowest_of_fastest")
        return {
            **{key: statistics.median(run[key] for run in runs) for key in medians},
            **{key: sum(run[key] for run in runs) for key in sums if key in runs[0]},
        }

    def cases(self, *, is_one: bool) -> list[str]:
        """What the crowds did, by name."""
        ending = "one session" if is_one else "a session each"
        found = {what: None for crowds in self.raw["crowds"].values() for what in crowds if what.endswith(ending)}
        return list(found)

    def sessions(self, name: str) -> int:
        """Of how many sessions the newest were listed."""
        return min(int(self.raw["sizes"]["sessions"]), SYSTEMS[name].sessions)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def tables(shown: Figures) -> str:
    """Everything between the marks."""
    parts = [_about(shown), "### Targets", _targets(shown), "### Append a turn", _appends(shown)]
    parts += ["### Read, fork, list", _reads(shown), "### Many at once, a session each", _many(shown)]
    parts += ["### Many at once on one session", _one(shown), "### Bytes and imports", _bytes(shown)]
    return "\n\n".join(part for part in parts if part)


def _about(shown: Figures) -> str:
    raw, machine = shown.raw, shown.raw["machine"]
    programs = ", ".join(f"{name} {machine[name]}" for name in ("PostgreSQL", "MariaDB", "Redis") if name in machine)
    busy = (
        "\n- **The machine was busy with other programs when the run began**: milliseconds and rates are worse than "
        "on a quiet one, and ratios scatter more (every sample is in the JSON)."
        if machine["load_before"] > machine["cores"]
        else ""
    )
    left_out = "".join(f"\n- Not measured: {SYSTEMS[name].title}: {why}." for name, why in raw["left_out"].items())
    return (
        f"Measured {raw['date']}, in {raw['minutes']:.0f} minutes.\n\n"
        f"- {machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}, "
        f"{machine['file_system']}; a sync of 4 KiB takes {machine['fsync_ms']} ms before the run and "
        f"{machine['fsync_ms_after']} ms after it.\n"
        f"- Load (processes that run or wait, our own among them) before: {machine['load_before']}, while measuring: "
        f"{min(machine['load_during'])} to {max(machine['load_during'])}, after: {machine['load_after']}.\n"
        f"- Python {machine['python']}, SQLite {machine['sqlite3']} in Python, apsw {machine['apsw']}, {programs}."
        f"{busy}{left_out}"
    )


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def ms(seconds: float | None) -> str:
    """Milliseconds, to two or three digits."""
    if seconds is None:
        return "–"
    value = seconds * 1e3
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(ratio: float | None) -> str:
    """A ratio."""
    if ratio is None:
        return "–"
    return f"{ratio:,.0f}×" if ratio >= 20 else f"{ratio:.1f}×" if ratio >= 3 else f"{ratio:.2f}×"


def _cell(shown: Figures, name: str, what: str) -> str:
    seconds, ratio = shown.seconds(name, what), shown.ratio(name, what)
    if seconds is None:
        return "–"
    return ms(seconds) if ratio is None or name.startswith("floor_") else f"{ms(seconds)} ({times(ratio)})"


def _rows(shown: Figures, cells: Any) -> list[list[str]]:
    """A row for each system, the engines set apart."""
    rows = []
    for engine, title in ENGINES.items():
        mine = [[SYSTEMS[name].title, *cells(name)] for name in shown.names if SYSTEMS[name].engine == engine]
        mine = [row for row in mine if set(row[1:]) != {"–"}]
        if mine:
            rows += [[f"**{title}**", *[""] * (len(mine[0]) - 1)], *mine]
    return rows


def _appends(shown: Figures) -> str:
    heads = [f"append at {head}" for head in shown.heads]
    steps, other = (f"{what} at {shown.heads[-2]}" for what in ("turn in steps", "append, async,"))

    def cells(name: str) -> list[str]:
        asked = [_cell(shown, name, what) for what in (*heads, other, steps)]
        return [*asked[:-2], times(shown.growth(name)), *asked[-2:], ms(shown.seconds(name, heads[-2], "cpu"))]

    titles = [f"{head:,}" for head in shown.heads]
    middle = f"{shown.heads[-2]:,}"
    return _table(
        [
            *("ms (× by hand) at a history of", *titles, "growth"),
            *(f"async, at {middle}", f"in steps, at {middle}", f"CPU of the caller, at {middle}"),
        ],
        _rows(shown, cells),
    )


def _reads(shown: Figures) -> str:
    most, sessions = shown.heads[-1], int(shown.raw["sizes"]["sessions"])
    whats = [*(f"load {head}" for head in shown.heads[-2:]), f"last 20 of {most}", f"fork at {most}", NEWEST]

    def cells(name: str) -> list[str]:
        *found, newest = (_cell(shown, name, what) for what in whats)
        is_fewer = newest != "–" and shown.sessions(name) < sessions
        return [*found, f"{newest}, of {shown.sessions(name):,}" if is_fewer else newest]

    return _table(["ms (× by hand)", *whats[:-1], f"{NEWEST} of {sessions:,}"], _rows(shown, cells))


def _many(shown: Figures) -> str:
    cases = shown.cases(is_one=False)

    def cells(name: str) -> list[str]:
        found = [shown.crowd(name, case) for case in cases]
        return [
            cell
            for each in found
            for cell in (["–"] * 3 if each is None else [f"{each['per_second']:,.0f}", ms(each["longest"]),
                                                         f"{each['slowest_of_fastest']:.2f}"])
        ]  # fmt: skip

    head = [
        each for case in cases for each in (f"{case.partition(',')[0]}: turns/s", "longest, ms", "slowest : fastest")
    ]
    return _table(["", *head], _rows(shown, cells))


def _one(shown: Figures) -> str:
    cases = shown.cases(is_one=True)

    def cells(name: str) -> list[str]:
        found = [shown.crowd(name, case) for case in cases]
        return [
            cell
            for each in found
            for cell in (["–"] * 2 if each is None else [
                f"{each['per_second']:,.0f}",
                " / ".join(f"{each[key]:,}" for key in ("turns", "refused", "lost", "torn", "interleaved")),
            ])
        ]  # fmt: skip

    what = "stored / refused / lost / torn / interleaved"
    head = [each for case in cases for each in (f"{case.partition(',')[0]}: turns/s", what)]
    return _table(["", *head], _rows(shown, cells))


def _bytes(shown: Figures) -> str:
    def cells(name: str) -> list[str]:
        stored, imports = shown.raw["bytes"].get(name), shown.raw["imports"].get(name)
        return [
            "–" if stored is None else f"{stored['ratio']:.2f}×",
            "–" if stored is None else f"{stored['stored'] / 1e6:,.1f} of {stored['json'] / 1e6:,.1f}",
            "–" if imports is None else f"{imports['seconds'] * 1e3:,.0f}",
            "–" if imports is None else f"{imports['modules']:,}",
        ]

    head = ["", "stored : JSON text", "MB", "import, ms", "modules"]
    real, told = shown.raw["transcripts"], ""
    if real:
        refused = f"; {real['refused']} were refused" if real["refused"] else ""
        told = (
            f"\n\nReal Claude Code transcripts, imported into SQLite: {real['files']} files, "
            f"{real['stored'] / 1e6:.1f} MB of {real['json'] / 1e6:.1f} MB "
            f"({real['stored'] / real['json']:.2f}×){refused}."
        )
    return _table(head, _rows(shown, cells)) + told


# Targets.


def _targets(shown: Figures) -> str:
    found = [row for row in (*_append_targets(shown), *_crowd_targets(shown), *_other_targets(shown)) if row]
    marked = [[what, target, figure, "yes" if is_met else "**no**"] for what, target, figure, is_met in found]
    return _table(["what", "target", "measured", "met"], marked)


Row = tuple[str, str, str, bool]


def _append_targets(shown: Figures) -> list[Row]:
    rows: list[Row] = []
    for name in ("segue_sqlite", "segue_jsonl", "segue_postgres", "segue_mysql", "segue_redis"):
        ratio, growth = shown.to_kept(name, f"append at {shown.heads[-2]}"), shown.growth(name)
        title = SYSTEMS[name].title
        if ratio is not None:
            rows.append(
                (f"{title}: append to one by hand of all that Segue keeps", "≤ 1.4×", times(ratio), ratio <= 1.4)
            )
        if growth is not None:
            what = f"{title}: append at {shown.heads[-1]:,} to one at {shown.heads[0]:,}"
            rows.append((what, "≤ 1.2×", times(growth), growth <= 1.2))
    return rows


def _crowd_targets(shown: Figures) -> list[Row]:
    rows: list[Row] = []
    for case in shown.cases(is_one=False):
        for mine, engine, least in (("segue_sqlite", "sqlite", 5), ("segue_postgres", "postgres", 3)):
            found, best = shown.crowd(mine, case), _best_peer(shown, engine, case)
            if "tasks" not in case or found is None or best is None:
                continue
            ratio = found["per_second"] / best[0]
            what = f"{SYSTEMS[mine].title}: {case}, to the best peer ({SYSTEMS[best[1]].title})"
            rows.append((what, f"≥ {least}×", times(ratio), ratio >= least))
    for case in shown.cases(is_one=True):
        mine = [name for name in shown.names if name.startswith("segue_")]
        found = [each for name in mine if (each := shown.crowd(name, case))]
        damage = sum(each["lost"] + each["torn"] + each["interleaved"] for each in found)
        rows.append((f"Segue, all stores: {case}: lost, torn or interleaved", "0", f"{damage}", damage == 0))
    return rows


def _best_peer(shown: Figures, engine: str, case: str) -> tuple[float, str] | None:
    rates = [
        (found["per_second"], name)
        for name in shown.names
        if SYSTEMS[name].engine == engine and not name.startswith(("floor_", "kept_", "segue_"))
        if (found := shown.crowd(name, case))
    ]
    return max(rates, default=None)


def _other_targets(shown: Figures) -> list[Row]:
    rows: list[Row] = []
    for name in shown.names:
        if not name.startswith("segue_"):
            continue
        title, fork = SYSTEMS[name].title, shown.seconds(name, f"fork at {shown.heads[-1]}")
        listed = shown.seconds(name, NEWEST)
        if fork is not None and SYSTEMS[name].engine in ("sqlite", "postgres", "mysql"):
            rows.append((f"{title}: fork at {shown.heads[-1]:,}", "≤ 3 ms", f"{ms(fork)} ms", fork <= 0.003))
        if listed is not None:
            rows.append(
                (
                    f"{title}: {NEWEST} of {shown.sessions(name):,} sessions",
                    "≤ 5 ms",
                    f"{ms(listed)} ms",
                    listed <= 0.005,
                )
            )
    if real := shown.raw["transcripts"]:
        ratio = real["stored"] / real["json"]
        rows.append(("SQLite: bytes of real transcripts to their text", "≤ 0.6×", f"{ratio:.2f}×", ratio <= 0.6))
    return rows

"""
The torture kit at its full sizes, and the table of what came of it: ``make torture``.

Runs the tests of MAP with SEGUE_TORTURE=1, and writes docs/data/torture.json and the table in docs/guarantees.md.
``--only 2,5`` runs some of the tests, ``--stores mysql,redis`` those of some stores; the rows of the others are kept.
``--quick`` runs them at a tenth.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
DATA = ROOT / "docs" / "data" / "torture.json"
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- torture: written by make torture -->", "<!-- torture: end -->"
STORES = ("sqlite", "jsonl", "postgres", "mysql", "redis", "memory")


class Part(NamedTuple):
    """
    One numbered test.

    Attributes:
        tests: ``file::function``; what stands for all parameters of the function.
        controls: Tests that pass only when something broken is noticed.
        cases: How many cases a test has that does not count them itself: (full, tenth).
    """

    number: int
    title: str
    tests: tuple[str, ...]
    controls: tuple[str, ...]
    cases: Mapping[str, tuple[int, int]] = MappingProxyType({})


_P, _S = "test_torture_processes", "test_torture_servers"
MAP = (
    Part(
        1,
        "power loss at any moment",
        (
            "test_sqlite_power_loss::test_nothing_acknowledged_is_lost_and_nothing_is_half_there",
            "test_sqlite_power_loss::test_nothing_acknowledged_is_lost_where_syncs_fail_too",
            "test_jsonl_power_loss::test_what_was_acknowledged_survives_a_power_loss_at_any_point",
        ),
        (
            "test_sqlite_power_loss::test_the_test_notices_a_store_that_does_not_sync_its_commits",
            "test_sqlite_power_loss::test_the_test_notices_a_store_that_trusts_what_it_reads_back",
            "test_jsonl_power_loss::test_without_syncs_acknowledged_entries_are_lost",
        ),
        {
            "test_nothing_acknowledged_is_lost_and_nothing_is_half_there": (4_000, 400),
            "test_nothing_acknowledged_is_lost_where_syncs_fail_too": (2_000, 200),
            "test_what_was_acknowledged_survives_a_power_loss_at_any_point": (200, 80),  # of each history
        },
    ),
    Part(
        2,
        "kill -9 while writing",
        (
            f"{_P}::test_writers_killed_at_any_moment_lose_nothing_acknowledged",
            "test_processes::test_kill_nine_during_appends_loses_no_acknowledged_batch_and_leaves_no_half",
        ),
        (f"{_P}::test_the_test_of_killed_writers_notices_one_that_acknowledges_before_it_stores",),
        {"test_kill_nine_during_appends_loses_no_acknowledged_batch_and_leaves_no_half": (200, 12)},
    ),
    Part(
        3,
        "one active run: 8 processes on one session",
        (
            "test_processes::test_eight_processes_that_queue_lose_no_turn_and_tear_none",
            "test_processes::test_eight_processes_that_are_rejected_leave_exactly_the_winners_turns",
        ),
        (f"{_P}::test_without_runs_turns_are_torn_apart",),
        {
            "test_eight_processes_that_queue_lose_no_turn_and_tear_none": (1_600, 96),
            "test_eight_processes_that_are_rejected_leave_exactly_the_winners_turns": (1_600, 96),
        },
    ),
    Part(
        4,
        "frozen holders, wrong clocks",
        (
            f"{_P}::test_a_frozen_holder_writes_nothing_once_overtaken_and_without_the_fence_it_would[*True]",
            f"{_P}::test_a_process_whose_wall_clock_is_wrong_steals_no_live_lease",
            "test_processes::test_the_lease_of_a_killed_process_is_taken_over_at_once",
        ),
        (
            f"{_P}::test_a_frozen_holder_writes_nothing_once_overtaken_and_without_the_fence_it_would[*False]",
            f"{_P}::test_the_test_of_wrong_clocks_notices_a_store_that_believes_its_clients",
        ),
        {"test_the_lease_of_a_killed_process_is_taken_over_at_once": (1, 1)},
    ),
    Part(
        5,
        "cut connections, server crashes",
        (
            f"{_S}::test_connections_cut_before_and_after_commits_lose_nothing_double_nothing_and_stop_nobody",
            f"{_S}::test_a_server_that_crashes_again_and_again_loses_nothing_acknowledged",
        ),
        (
            f"{_S}::test_a_writer_that_repeats_blindly_stores_twice_what_was_cut_after_its_commit",
            f"{_S}::test_a_server_that_acknowledges_before_it_writes_loses_what_it_acknowledged",
        ),
    ),
    Part(
        7,
        "bytes come back as they came, or are refused",
        (
            "test_torture_content::test_json_of_any_kind_and_spelling_comes_back_byte_for_byte",
            "test_torture_content::test_bytes_of_any_kind_come_back",
            "test_torture_content::test_a_hostile_document_comes_back_as_it_was_or_is_refused_and_leaves_nothing",
        ),
        ("test_torture_content::test_a_store_that_keeps_values_instead_of_bytes_is_noticed",),
        {"test_a_hostile_document_comes_back_as_it_was_or_is_refused_and_leaves_nothing": (1, 1)},
    ),
    Part(
        9,
        "damage: bits, cuts, blocks, rows",
        (
            "test_torture_damage::test_every_change_of_a_living_entry_is_reported",
            "test_torture_damage::test_every_edited_row_of_postgres_is_reported",
        ),
        ("test_torture_damage::test_a_store_that_compares_no_digests_is_noticed",),
    ),
    Part(
        10,
        "full disks, failing syncs, no writes",
        (
            "test_torture_disks::test_full_disks_of_all_sizes_lose_nothing_and_show_nothing_torn",
            "test_torture_disks::test_a_disk_that_takes_no_writes_is_told_by_name_and_loses_nothing",
            "test_torture_disks::test_a_server_whose_disk_is_full_says_so_loses_nothing_and_works_again",
            "test_sqlite_power_loss::test_after_a_failed_sync_a_retry_is_acknowledged_only_when_it_is_on_the_disk",
            "test_jsonl_damage::test_after_a_failed_sync_the_outcome_is_unknown_and_the_handle_writes_no_more",
        ),
        ("test_torture_disks::test_lines_written_without_a_look_at_what_was_taken_are_lost_or_torn",),
        {
            "test_a_disk_that_takes_no_writes_is_told_by_name_and_loses_nothing": (1, 1),
            "test_after_a_failed_sync_a_retry_is_acknowledged_only_when_it_is_on_the_disk": (1, 1),
            "test_after_a_failed_sync_the_outcome_is_unknown_and_the_handle_writes_no_more": (1, 1),
        },
    ),
    Part(
        12,
        "one key, many senders",
        (
            f"{_P}::test_a_hundred_keys_from_sixteen_senders_are_a_hundred_entries",
            f"{_P}::test_a_key_with_another_body_is_a_conflict_that_names_the_place",
            f"{_P}::test_a_key_may_be_used_again_in_another_session_and_never_in_an_erased_one",
        ),
        (f"{_P}::test_senders_that_look_before_they_insert_store_too_much",),
        {
            "test_a_key_with_another_body_is_a_conflict_that_names_the_place": (10, 10),
            "test_a_key_may_be_used_again_in_another_session_and_never_in_an_erased_one": (1, 1),
        },
    ),
    Part(
        13,
        "linearizable, with kills and unknown outcomes",
        ("test_torture_linear::test_what_processes_were_answered_has_an_order_though_some_were_killed",),
        (
            "test_torture_linear::test_a_bug_planted_in_one_of_the_processes_stores_is_found",
            "test_linear::test_bugs_planted_in_a_log_of_four_threads_are_found",
            "test_linear::test_two_that_hold_the_lease_at_once_are_found",
        ),
    ),
    Part(
        16,
        "one model for all stores",
        (
            "test_torture_model::test_random_histories_say_and_show_what_the_model_does",
            "test_torture_model::test_random_histories_say_and_show_what_the_model_does_on_a_server",
        ),
        (
            "test_planted_bugs::test_a_bug_planted_in_the_memory_store_is_noticed",
            "test_planted_bugs::test_a_bug_planted_in_the_sqlite_store_is_noticed",
            "test_planted_bugs::test_random_histories_notice_a_bug_planted_in_the_sqlite_store",
        ),
    ),
    Part(
        20,
        "calls cancelled at any moment",
        (
            "test_async::test_mixed_calls_of_threads_and_loops_half_of_them_cancelled_cross_leak_and_lose_nothing",
            "test_async::test_a_run_that_is_cancelled_at_any_moment_leaves_no_lease",
            "test_async::test_an_append_that_is_cancelled_is_whole_or_absent",
        ),
        ("test_torture_model::test_cancelled_runs_leave_no_lease_and_the_test_notices_one_that_does",),
        {
            "test_mixed_calls_of_threads_and_loops_half_of_them_cancelled_cross_leak_and_lose_nothing": (20_000, 2_000),
            "test_a_run_that_is_cancelled_at_any_moment_leaves_no_lease": (60, 60),
            "test_an_append_that_is_cancelled_is_whole_or_absent": (100, 100),
        },
    ),
    Part(
        22,
        "followers that are cut off",
        (
            f"{_P}::test_followers_that_are_cut_off_again_and_again_get_every_entry_once_in_order",
            "test_follow::test_followers_in_threads_and_loops_see_what_processes_write_once_and_in_order",
        ),
        (f"{_P}::test_a_follower_that_goes_on_at_the_head_has_gaps",),
        {"test_followers_in_threads_and_loops_see_what_processes_write_once_and_in_order": (120, 120)},
    ),
    Part(
        23,
        "older files, killed migrations, newer formats",
        (
            "test_upgrade::test_what_an_earlier_version_wrote_is_shown_as_it_was",
            "test_upgrade::test_what_an_earlier_version_wrote_into_postgres_is_shown_as_it_was",
            "test_upgrade::test_a_store_whose_making_was_killed_at_any_statement_opens",
            "test_upgrade::test_a_migration_killed_at_any_statement_is_done_by_the_next_and_changes_nothing",
            "test_upgrade::test_an_older_version_refuses_a_newer_file_by_name_and_leaves_it_alone",
            "test_upgrade::test_an_older_version_refuses_a_newer_schema_by_name_and_leaves_it_alone",
        ),
        ("test_upgrade::test_the_test_notices_a_migration_that_is_not_in_one_transaction",),
        {
            "test_what_an_earlier_version_wrote_is_shown_as_it_was": (1, 1),
            "test_what_an_earlier_version_wrote_into_postgres_is_shown_as_it_was": (1, 1),
            "test_an_older_version_refuses_a_newer_file_by_name_and_leaves_it_alone": (1, 1),
            "test_an_older_version_refuses_a_newer_schema_by_name_and_leaves_it_alone": (1, 1),
        },
    ),
)

VIOLATIONS = (
    "torn", "late", "stolen", "stuck", "changed", "wrong", "silent", "crashes", "violations", "divergences",
    "disordered", "left",
)  # fmt: skip
INFORMATION = ("acknowledged", "repeats", "disconnects", "unknown", "reported", "unhurt", "at seams", "steps")


class Outcome(NamedTuple):
    """What one test with its parameters came to."""

    function: str
    id: str
    store: str
    state: str  # passed, failed, skipped
    seconds: float
    figures: dict[str, Any]


def run(parts: list[Part], stores: list[str], *, is_full: bool) -> dict[str, list[Outcome]]:
    """The outcomes of the tests of the parts (of some stores, or all), by ``file::function``."""
    nodes = sorted({node.partition("[")[0] for part in parts for node in (*part.tests, *part.controls)})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "2",
            "--dist",
            "worksteal",
            f"--junitxml={report}",
            "--timeout=7200",
        ]
        command += [f"tests/{node.replace('::', '.py::', 1)}" for node in nodes]
        controls = [node.partition("::")[2] for part in parts for node in part.controls if "[" not in node]
        command += ["-k", " or ".join([*stores, *controls])] if stores else []
        env = {**os.environ, "SEGUE_TORTURE": "1"} if is_full else dict(os.environ)
        if not is_full:
            env.pop("SEGUE_TORTURE", None)
        subprocess.run(command, cwd=ROOT, env=env, check=False)
        if not report.exists():
            raise SystemExit("pytest was ended before its report; no row was written, run this part again")
        found: dict[str, list[Outcome]] = defaultdict(list)
        for case in ET.parse(report).iter("testcase"):
            file = case.get("classname", "").split(".")[1]
            outcome = _outcome(case, file)
            found[f"{file}::{outcome.function}"].append(outcome)
        return found


def _outcome(case: ET.Element, file: str) -> Outcome:
    id = case.get("name", "")
    figures = {each.get("name", ""): _number(each.get("value", "")) for each in case.iter("property")}
    state = "passed"
    for name in ("failure", "error", "skipped"):
        if case.find(name) is not None:
            state = "skipped" if name == "skipped" else "failed"
    return Outcome(id.partition("[")[0], id, _store(id, file), state, float(case.get("time", "0")), figures)


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _store(id: str, file: str) -> str:
    parameters = id.partition("[")[2]
    named = [store for store in STORES if store in parameters]
    named += [store for store in STORES if f"_{store}_" in f"_{id.partition('[')[0]}_"]
    named += [store for store in STORES if store in file]
    if named:
        return named[0]
    return "postgres" if "servers" in file or "schema" in id or "a_server_" in id else "sqlite"


def rows(part: Part, outcomes: dict[str, list[Outcome]], *, is_full: bool) -> list[dict[str, Any]]:
    """One row a store."""
    tests = [outcome for node in part.tests for outcome in _matching(node, outcomes)]
    controls = [outcome for node in part.controls for outcome in _matching(node, outcomes)]
    found = []
    for store in STORES:
        mine = [outcome for outcome in tests if outcome.store == store]
        if not mine or (store == "memory" and part.number != 7):
            continue
        row = _row(part, mine, is_full=is_full)
        own = [outcome for outcome in controls if outcome.store == store] or controls
        found.append({"test": part.number, "title": part.title, "store": store, **row, "control": _control(own)})
    return found


def _matching(node: str, outcomes: dict[str, list[Outcome]]) -> list[Outcome]:
    name, _, ending = node.partition("[")
    wanted = ending.strip("*]")
    return [outcome for outcome in outcomes.get(name, []) if not wanted or outcome.id.endswith(f"{wanted}]")]


def _row(part: Part, mine: list[Outcome], *, is_full: bool) -> dict[str, Any]:
    def total(name: str) -> int:
        return sum(value for each in mine if isinstance(value := each.figures.get(name, 0), int))

    known = {name: sizes[not is_full] for name, sizes in part.cases.items()}
    cases = sum(each.figures.get("cases", known.get(each.function, 0)) for each in mine if each.state == "passed")
    failed = [each.id for each in mine if each.state == "failed"]
    skipped = [each.id for each in mine if each.state == "skipped"]
    return {
        "cases": cases,
        "lost": total("lost"),
        "duplicated": total("duplicated"),
        "other": {name: total(name) for name in VIOLATIONS if total(name)},
        "information": {name: total(name) for name in INFORMATION if total(name)},
        "seeds": sorted({str(each.figures["seed"]) for each in mine if "seed" in each.figures}),
        "seconds": round(sum(each.seconds for each in mine)),
        "size": "full" if is_full else "a tenth",
        "failed": failed,
        "skipped": skipped,
    }


def _control(controls: list[Outcome]) -> str:
    passed = sum(each.state == "passed" for each in controls)
    figures = {
        name: value
        for each in controls
        for name, value in each.figures.items()
        if isinstance(value, int) and value and name in ("lost", "duplicated", *VIOLATIONS)
    }
    told = ", ".join(f"{name} {value:,}" for name, value in figures.items())
    return f"{passed} of {len(controls)} found" + (f" ({told})" if told else "")


def table(report: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        f"Last run: {report['date']}, {report['machine']}. Rows of another date or size say so.",
        "",
        "| test | store | cases | lost | twice | other | seconds | control |",
        "|---|---|--:|--:|--:|---|--:|---|",
    ]
    for row in report["rows"]:
        cases = f"{row['cases']:,}" + ("" if row["size"] == "full" else " (a tenth)")
        other = ", ".join(f"{name} {value}" for name, value in row["other"].items()) or "0"
        if row["failed"]:
            other = f"**failed: {', '.join(row['failed'])}**"
        elif row["skipped"]:
            other += f"; left out: {len(row['skipped'])}"
        lines.append(
            f"| {row['test']}: {row['title']} | {row['store']} | {cases} | {row['lost']} | {row['duplicated']} "
            f"| {other} | {row['seconds']} | {row['control']} |"
        )
    return "\n".join(lines)


def write(report: dict[str, Any]) -> None:
    """Keep the figures, and put the table between its marks."""
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(report, indent=1) + "\n")
    page = PAGE.read_text("utf-8")
    if BEGIN not in page:
        raise SystemExit(f"{PAGE} has no line {BEGIN!r}")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(report)}\n\n{END}{after}", "utf-8")


def main() -> int:
    """Run, write, and say whether all was as promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="numbers of tests, such as 2,5")
    parser.add_argument("--stores", default="", help="such as mysql,redis; else all")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes; writes nothing")
    chosen = parser.parse_args()
    numbers = {int(number) for number in chosen.only.split(",") if number}
    parts = [part for part in MAP if not numbers or part.number in numbers]
    stores = [store for store in chosen.stores.split(",") if store]
    outcomes = run(parts, stores, is_full=not chosen.quick)
    fresh = [row for part in parts for row in rows(part, outcomes, is_full=not chosen.quick)]
    fresh = [row for row in fresh if not stores or row["store"] in stores]
    old = json.loads(DATA.read_text())["rows"] if DATA.exists() else []
    replaced = {(row["test"], row["store"]) for row in fresh}
    kept = [row for row in old if (row["test"], row["store"]) not in replaced]
    today = dt.datetime.now(dt.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.system()}"
    report = {
        "date": today,
        "machine": machine,
        "rows": sorted(kept + fresh, key=lambda row: (row["test"], STORES.index(row["store"]))),
    }
    if chosen.quick:
        print(table({**report, "rows": fresh}))
    else:
        write(report)
    wrong = [row for row in fresh if row["failed"] or row["lost"] or row["duplicated"] or row["other"]]
    blind = [row for row in fresh if not row["control"].startswith(f"{row['control'].split(' of ')[1].split()[0]} of ")]
    print(f"{len(fresh)} rows; {len(wrong)} with violations, {len(blind)} whose control was not noticed")
    return 1 if wrong or blind else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""The map of the torture kit names tests that exist, and each of its parts has a control."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SCRIPT = TESTS.parent / "scripts" / "torture.py"


@pytest.fixture(scope="module")
def torture():
    spec = importlib.util.spec_from_file_location("torture_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def functions(file):
    return {
        node.name for node in ast.parse((TESTS / f"{file}.py").read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_test_of_the_map_exists(torture):
    named = [node.partition("[")[0] for part in torture.MAP for node in (*part.tests, *part.controls)]
    missing = [node for node in named if node.partition("::")[2] not in functions(node.partition("::")[0])]
    assert missing == []


def test_every_part_has_a_control_and_counts_its_cases(torture):
    assert [part.number for part in torture.MAP if not part.controls] == []
    for part in torture.MAP:
        assert set(part.cases) <= {node.partition("::")[2] for node in part.tests}


def test_a_violation_or_a_blind_control_is_shown(torture):
    part = torture.MAP[1]
    one = torture.Outcome("test_x", "test_x[sqlite]", "sqlite", "passed", 1.0, {"cases": 5, "lost": 2, "torn": 1})
    outcomes = {part.tests[0]: [one], part.controls[0]: [one._replace(state="failed")]}
    (row,) = torture.rows(part, outcomes, is_full=True)
    assert (row["cases"], row["lost"], row["other"]) == (5, 2, {"torn": 1})
    assert row["control"].startswith("0 of 1 found")

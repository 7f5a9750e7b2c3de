"""The public surface: two faces with one list of names, every name documented, a light import."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import segue
from segue import aio, errors

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "segue"
PAIRS = [
    (segue.Database, segue.AsyncDatabase),
    (segue.Scope, segue.AsyncScope),
    (segue.Session, segue.AsyncSession),
    (segue.Run, segue.AsyncRun),
    (segue.Resumed, segue.AsyncResumed),
]


def public(cls):
    names = {name for name in dir(cls) if not name.startswith("_")} | set(getattr(cls, "__annotations__", {}))
    inner = {n for n in names if (inspect.getdoc(getattr(cls, n, None)) or "").startswith("(inner)")}
    return names - inner - {"engine"}


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_the_async_face_has_the_names_of_the_sync_one(sync, twin):
    assert public(sync) == public(twin) - {"sync"}


@pytest.mark.parametrize(("sync", "twin"), PAIRS)
def test_twins_take_the_same_arguments(sync, twin):
    for name in public(sync):
        mine, other = getattr(sync, name, None), getattr(twin, name, None)
        if inspect.isfunction(mine) and name != "effect":
            assert [str(p) for p in inspect.signature(mine).parameters.values()] == [
                str(p) for p in inspect.signature(other).parameters.values()
            ], f"{sync.__name__}.{name}"


def test_the_async_face_is_what_its_generator_writes():
    done = subprocess.run([sys.executable, str(ROOT / "scripts/make_aio.py"), "--check"], check=False)
    assert done.returncode == 0, "run: python scripts/make_aio.py"


def test_all_is_sorted_and_every_name_exists():
    assert segue.__all__ == sorted(segue.__all__)
    for name in segue.__all__:
        assert getattr(segue, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        segue.nonsense  # noqa: B018


def test_every_public_name_says_what_it_does():
    for name in segue.__all__:
        thing = getattr(segue, name)
        if not inspect.isclass(thing) and not inspect.isfunction(thing):
            continue
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing) and thing.__module__.startswith("segue"):
            for member, value in vars(thing).items():
                if inspect.isfunction(value) and not member.startswith("_"):
                    assert inspect.getdoc(value), f"{name}.{member}"


def test_every_error_is_in_the_tree_that_its_module_draws():
    drawn = set(re.findall(r"── (\w+)", errors.__doc__)) | {"SegueError"}
    real = {n for n, e in vars(errors).items() if inspect.isclass(e) and issubclass(e, errors.SegueError)}
    assert real == drawn
    assert real <= set(segue.__all__) | {"NotDone", "QueueTimeout"}


def test_import_brings_no_driver_no_sdk_and_no_event_loop():
    code = "import sys, json, segue; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    modules = json.loads(out)
    heavy = {"apsw", "psycopg", "anthropic", "openai", "rich", "asyncio", "httpx", "duckdb", "zstandard", "pydantic"}
    assert heavy.isdisjoint(modules)
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(len(sys.modules))"], capture_output=True, text=True, check=True
    )
    assert len(modules) - int(bare.stdout) <= 150


def functions(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1 - len((ast.get_docstring(node) or "").splitlines())


def test_functions_fit_a_screen_and_files_stay_below_the_alarm():
    sizes = [(size, f"{path.relative_to(SRC)}:{name}") for path in SRC.rglob("*.py") for name, size in functions(path)]
    assert [pair for pair in sizes if pair[0] > 70] == []
    ordered = sorted(size for size, _ in sizes)
    assert ordered[len(ordered) // 2] <= 10
    assert ordered[len(ordered) * 95 // 100] <= 45
    lines = {str(path.relative_to(SRC)): path.read_text().count("\n") for path in SRC.rglob("*.py")}
    assert {name: n for name, n in lines.items() if n > 700 and name != "aio.py"} == {}


def test_nothing_stored_can_be_run():
    for path in SRC.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert {"pickle", "marshal", "shelve", "dill"}.isdisjoint(names), path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"eval", "exec", "compile"}, path


def test_the_module_that_waits_is_the_generated_one():
    assert aio.aopen is segue.aopen

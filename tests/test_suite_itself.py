"""The suite as a thing that ships: whole, without tests that hide each other, and clear when something is missing."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from collections import Counter

import pytest

import segue.testing
from segue.store import CAPABILITIES
from segue.stores.memory import MemoryStore
from segue.testing import StoreCase, StoreSuite, capability_matrix
from suite_runner import calls_of

AREAS = {
    cls
    for module in pkgutil.iter_modules(segue.testing.__path__)
    for cls in vars(importlib.import_module(f"segue.testing.{module.name}")).values()
    if isinstance(cls, type) and issubclass(cls, StoreCase) and any(name.startswith("test_") for name in vars(cls))
}


def test_the_suite_has_every_area():
    assert set(StoreSuite.__mro__) >= AREAS


def test_no_area_hides_what_another_has_of_the_same_name():
    names = Counter(name for area in AREAS for name in vars(area) if not name.startswith("__"))
    assert [name for name, count in names.items() if count > 1] == []


def test_every_test_is_a_sentence():
    assert [name for name, _ in calls_of(StoreSuite) if name.count("_") < 3] == []


def test_a_store_without_make_store_is_told_what_to_define(tmp_path):
    with pytest.raises(NotImplementedError, match="TestNothing must define make_store"):
        type("TestNothing", (StoreSuite,), {})().set_up(tmp_path)


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(missing):
    program = f"import sys; sys.modules[{missing!r}] = None; import segue.testing"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"MissingExtra: {missing} is not installed; run: pip install 'segue[testing]'" in ran.stderr


def test_asserts_of_the_suite_say_what_differs():
    assert segue.testing.case.__loader__.__class__.__name__ == "AssertionRewritingHook"


def test_the_matrix_shows_what_is_declared():
    table = capability_matrix([("one", frozenset({"durable"})), ("memory", MemoryStore.capabilities)])
    head, one, memory = table.splitlines()
    assert head.split() == sorted(CAPABILITIES)
    assert (one.split()[0], one.count("yes"), one.count("-")) == ("one", 1, len(CAPABILITIES) - 1)
    assert memory.count("yes") == 0


def test_handles_by_one_name_share_their_data_and_others_do_not():
    one, two, other = MemoryStore("here"), MemoryStore("here"), MemoryStore("there")
    assert one._data is two._data is MemoryStore(two)._data
    assert one._data is not other._data

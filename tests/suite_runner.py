"""Runs areas of the suite on a store without pytest, and says which test failed first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue.testing import StoreCase


def first_failure(make_store: Callable[[Path], object], areas: tuple[type[StoreCase], ...], directory: Path):
    """Name of the first test of the areas that fails on the store, with its error; None when all pass."""
    suite = type("Planted", areas, {"make_store": lambda self, where: make_store(where)})
    directory.mkdir(exist_ok=True)
    for name, call in calls_of(suite):
        try:
            run(suite(), call, directory)
        except pytest.skip.Exception:
            continue
        except (Exception, pytest.fail.Exception) as error:
            if str(error).startswith("Timeout"):  # the time limit of the test that looks for the failure
                raise
            return name, error
    return None


def run(case: StoreCase, call: Callable[[StoreCase], None], directory: Path) -> None:
    case.set_up(directory)
    try:
        call(case)
    finally:
        case.tear_down()


def calls_of(suite: type[StoreCase]) -> Iterator[tuple[str, Callable[[StoreCase], None]]]:
    for name in dir(suite):
        test = getattr(suite, name)
        if name.startswith("test_"):
            for arguments in arguments_of(test):
                yield name, lambda case, test=test, arguments=arguments: test(case, **arguments)


def arguments_of(test: Callable[..., None]) -> Iterator[dict[str, object]]:
    """All combinations of the test's parametrize marks."""
    choices = []
    for mark in getattr(test, "pytestmark", ()):
        names, values = mark.args
        names = (names,) if isinstance(names, str) else names
        choices.append([dict(zip(names, value if len(names) > 1 else (value,), strict=True)) for value in values])
    for chosen in itertools.product(*choices):
        yield {name: value for each in chosen for name, value in each.items()}

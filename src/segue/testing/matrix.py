"""What the tested stores declare, as a table at the end of a run."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from segue.store import CAPABILITIES, Store

_NAME = "segue-capability-matrix"


def capability_matrix(declared: Iterable[tuple[str, frozenset[str]]]) -> str:
    """
    A table with one line a store.

    Args:
        declared: Name and capabilities of each store.
    """
    rows = dict(declared)
    names = sorted(CAPABILITIES)
    width = max((len(store) for store in rows), default=0)
    lines = [" " * width + "  " + "  ".join(names)]
    for store, capabilities in rows.items():
        cells = (("yes" if name in capabilities else "-").ljust(len(name)) for name in names)
        lines.append(f"{store:{width}}  {'  '.join(cells)}")
    return "\n".join(line.rstrip() for line in lines)


class Matrix:
    """A plugin of pytest that is there once the first store was tested."""

    def __init__(self) -> None:
        self._declared: dict[str, frozenset[str]] = {}

    def add(self, store: Store) -> None:
        """Remember what a store declares."""
        self._declared[store.name] = store.capabilities

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table. Workers of pytest-xdist have no terminal: run without -n to see it."""
        terminalreporter.section("capabilities of the tested stores")
        terminalreporter.write_line(capability_matrix(self._declared.items()))


def matrix_of(config: pytest.Config) -> Matrix:
    """The run's table."""
    found = config.pluginmanager.get_plugin(_NAME)
    if found is None:
        found = Matrix()
        config.pluginmanager.register(found, _NAME)
    assert isinstance(found, Matrix)
    return found

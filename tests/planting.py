"""How bugs are registered, and what several of them need."""

from __future__ import annotations


def planter(bugs: dict):
    """A decorator that registers planters of bugs in ``bugs``, each with the area of the suite that must notice."""
    return lambda area: planted(area, bugs)


def planted(area: type, bugs: dict):
    """Register a function that plants a bug: by patching, or by giving a broken class."""

    def register(plant):
        bugs[plant.__name__.replace("_", " ")] = (area, plant)
        return plant

    return register


class Any:
    """Equal to everything."""

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = None

"""
The migrations of a store's schema: what is pending, and bringing it up to date before programs open it.

A store whose module has the functions ``plan`` and ``apply`` takes part; they give (number, name, SQL) of each step.
The others have nothing to migrate. They are opened all the same, so that one that is not there is told; none is made.
A store brings its schema up to date when it is opened. Here that is done apart: by an owner of the schema, where
programs connect as users that may not change it, or at a time of one's choosing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .database import find_store, open
from .errors import Unsupported


class Step(NamedTuple):
    """
    One migration.

    Attributes:
        number: They are applied in this order, each with its record.
        name: What it is called.
        sql: What it does; ``@schema@`` stands for the schema's name in it.
    """

    number: int
    name: str
    sql: str


class Migrations(NamedTuple):
    """
    A store's migrations.

    Attributes:
        has_schema: False for stores that have none to migrate: it is there, and there is nothing to do.
        steps: The ones that are pending, or that were applied.
    """

    has_schema: bool
    steps: tuple[Step, ...]


def plan(url: str, **options: Any) -> Migrations:
    """
    What a store's schema lacks; changes nothing.

    Args:
        url: The store's, as for ``segue.open``. A file or database that is not there lacks all.
        options: ``schema``, where the store has one of that name.

    Raises:
        TooNew: A newer Segue made the schema.
        Unavailable: The store cannot be asked.
        Unsupported: An option that this store does not take.
    """
    return _call("plan", url, options)


def apply(url: str, **options: Any) -> Migrations:
    """
    Bring a store's schema up to date; safe while programs use it, and done once however many call.

    Args:
        url: The store's, with the user who is to own the tables.
        options: What the store takes besides. PostgreSQL: ``schema``; ``row_security=True`` switches row-level
            security on, for good; ``app_user`` names a user who may then work with the tables, and not change them.

    Returns:
        The steps that were applied; none when there was nothing to do.

    Raises:
        TooNew: A newer Segue made the schema.
        Unavailable: A right is missing, or the tables stay locked by others; nothing of that step was done.
        Unsupported: An option that this store does not take.
    """
    return _call("apply", url, options)


def _call(name: str, url: str, options: dict[str, Any]) -> Migrations:
    module, made, place = find_store(url)
    store = module.__name__.rpartition(".")[2]
    call = getattr(module, name, None)
    unknown = sorted(set(options) - set(getattr(call, "__kwdefaults__", None) or ()))
    if unknown:
        raise Unsupported(unknown[0], store)
    if call is None:
        _look(url, getattr(module, made))
        return Migrations(has_schema=False, steps=())
    found = [step[:3] for step in call(place, **options)]
    steps = (Step(number, step_name.removeprefix(f"{number:04}_"), sql) for number, step_name, sql in found)
    return Migrations(has_schema=True, steps=tuple(steps))


def _look(url: str, made: type) -> None:
    """Open the store and close it, without making anything."""
    known = made.__init__.__kwdefaults__ or ()  # type: ignore[misc]
    open(url, **{name: value for name, value in (("read_only", True), ("migrate", False)) if name in known}).close()

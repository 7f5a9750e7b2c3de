"""Writes docs/cli.md from the parser: ``python -m segue.cli.docs > docs/cli.md``."""

from __future__ import annotations

import sys
from argparse import Action
from collections.abc import Iterator

from .commands import ABOUT, COMMANDS, COMMON, SWITCHES, Command, own_actions, own_choices
from .machine import SESSION_FIELDS
from .outcome import EXIT_CODES

_HEAD = f"""# The command line

<!-- Made by `python -m segue.cli.docs > docs/cli.md`; a test compares it with the program. -->

{ABOUT} It is installed with the package; `python -m segue` is the same.
Colours need the extra: `pip install 'segue[cli]'` (rich). Without it the output is the same in plain.

```text
segue [options] COMMAND [arguments] [options]
```

## Which session

| word | the session |
|---|---|
| `3f9a1c22` | whose id is this, or the only one whose id begins or ends so (4 characters or more) |
| `key:ticket-17` | with the caller's own key `ticket-17` |
| `latest` | that was active last |
| `id:latest` | whose full id is `latest` |

A generated id begins with the time, which sessions of one minute share. So lists show its last 8 characters.

## Whose sessions, in which store
"""

_JSON = """
## Output for programs

`--json` prints JSON lines: one object a line, and nothing else, on standard output. A command with one result
prints one line. Times are ISO 8601 in UTC with six digits, so they sort as text. Fields may be added in a later
version; none is removed or changes its meaning. An error is one object on standard error: `error` (a name in
`segue.errors`, or `Ambiguous` or `NoStore`), `message`, `exit_code`, and `candidates` where several sessions fit.

Output for people may change with every version. It is coloured only on a terminal (`NO_COLOR` and `FORCE_COLOR`
are respected), cut or wrapped to its width (40 columns or more), and neither in a pipe. Control and direction
characters in stored text are shown as escapes (`\\x1b`, `\\u202e`); stored text never steers the terminal.

A store that is not there is never made, but by `segue import` and as the target of `segue copy`: every other command
says `no store at …` and ends with 5. A database of a server without Segue's tables is no store either (but of Redis,
which has none: there it is an empty one).

### A session

The commands that show or change a session print it so:

"""


def document() -> str:
    """The whole page."""
    return "\n".join(
        [
            _HEAD,
            _table(("option", "meaning"), [(f"`{name} {metavar}`", help) for name, metavar, help in COMMON]),
            _table(("option", "meaning"), [(f"`{name}`", help) for name, help in SWITCHES]),
            _JSON.lstrip("\n"),
            _fields(SESSION_FIELDS),
            "## Exit codes\n",
            _table(("code", "meaning"), [(f"{code}", meaning) for code, meaning in EXIT_CODES.items()]),
            "## Commands\n",
            _table(("command", "what it does"), [_contents(command) for command in COMMANDS]),
            *(_section(command) for command in COMMANDS),
        ]
    ).rstrip() + "\n"  # fmt: skip


def _contents(command: Command) -> tuple[str, str]:
    return f"[`{command.name}`](#segue-{command.name})", command.summary


def _section(command: Command) -> str:
    actions = own_actions(command)
    usage = " ".join(["segue", command.name, *_usages(command)])
    parts = [f"### segue {command.name}\n", command.summary]
    parts += [command.about] if command.about else []
    parts += [f"\n```text\n{usage}\n```\n"]
    rows = [(f"`{_name(action)}`", action.help or "") for action in actions]
    rows += [(f"`{name} {metavar}`", command.common[name]) for name, metavar, _ in COMMON if name in command.common]
    if rows:
        parts += [_table(("argument", "meaning"), rows)]
    parts += [f"Example: `{command.example}`\n"]
    if command.json is SESSION_FIELDS:
        return "\n".join([*parts, "With `--json`: one line a session, as [above](#a-session).\n"])
    return "\n".join([*parts, "With `--json` a line holds:\n", _fields(command.json)])


def _fields(fields: dict[str, str]) -> str:
    return _table(("field", "meaning"), [(f"`{name}`", meaning) for name, meaning in fields.items()])


def _name(action: Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest).upper()
    return " ".join([*action.option_strings, *([_takes(action)] if action.nargs != 0 else [])])


def _takes(action: Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    return "|".join(map(str, action.choices)) if action.choices else action.dest.upper()


def _usages(command: Command) -> Iterator[str]:
    choices = {action.dest: choice for choice in own_choices(command) for action in choice}
    for action in own_actions(command):
        choice = choices.get(action.dest, [])
        if not choice:
            yield _usage(action)
        elif action.dest == choice[0].dest:
            yield f"({' | '.join(map(_name, choice))})"


def _usage(action: Action) -> str:
    name = _name(action)
    if action.option_strings:
        return name if action.required else f"[{name}]"
    return {"+": f"{name} [{name} …]", "*": f"[{name} …]", "?": f"[{name}]"}.get(str(action.nargs), name)


def _table(heads: tuple[str, str], rows: list[tuple[str, str]]) -> str:
    written = [f"| {heads[0]} | {heads[1]} |", "|---|---|"]
    return "\n".join(written + [f"| {name.replace('|', chr(92) + '|')} | {meaning} |" for name, meaning in rows]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())

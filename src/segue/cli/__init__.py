"""The command line: ``segue`` or ``python -m segue``. See docs/cli.md."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence

from segue.errors import SegueError

from . import address
from .commands import Command, parser
from .outcome import BUG, DONE, INTERRUPTED, PIPE, as_value, exit_code, message
from .screen import Screen, as_json
from .text import safe


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command.

    Args:
        argv: The words after ``segue``; None: those of the process.

    Returns:
        The exit code; docs/cli.md lists them. Wrong options end the process with 2, as argparse does.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    made = parser()
    args = made.parse_args(argv)
    if args.command is None:
        made.print_help()
        return DONE
    try:
        code = _run(args.command, args)
        sys.stdout.flush()
    except SegueError as error:
        return _failed(error, args)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads: say nothing at the end either
        return PIPE
    except KeyboardInterrupt:
        sys.stderr.write("segue: interrupted\n")
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        _say(f"a mistake of segue itself: {type(error).__name__}: {error}; run it again with --debug and report it")
        return BUG
    return code


def _run(command: Command, args: Namespace) -> int:
    screen = Screen(is_json=args.json)
    if command.alone is not None:
        return command.alone(args, screen)
    assert command.run is not None
    with address.desk(args, reads=command.reads, makes=command.makes) as desk:
        return command.run(desk, args, screen)


def _failed(error: SegueError, args: Namespace) -> int:
    """Say on standard error what went wrong, in one line, and give the exit code."""
    if args.debug:
        traceback.print_exception(error)
    scope = "/".join(address.owner(args))
    if args.json:
        sys.stderr.write(as_json(as_value(error, scope=scope)) + "\n")
    else:
        _say(message(error, scope=scope))
    return exit_code(error)


def _say(text: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"segue: {safe(' '.join(text.split()))}\n")

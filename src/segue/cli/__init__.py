"""The command line: ``segue`` or ``python -m segue``. See docs/cli.md."""

from __future__ import annotations

import os
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from segue.errors import Invalid, SegueError, Unavailable

from . import address
from .commands import Command, WrongWords, parsed, parser
from .outcome import BUG, DONE, INTERRUPTED, PIPE, USAGE, as_value, exit_code, message
from .screen import Screen, as_json, remark


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command.

    Args:
        argv: The words after ``segue``; None: those of the process.

    Returns:
        The exit code; docs/cli.md lists them.
    """
    _fill_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    made = parser()
    try:
        args = parsed(made, argv)
    except WrongWords as error:
        return _misread(error, sys.argv[1:] if argv is None else argv)
    if args.command is None:
        made.print_help()
        return DONE
    try:
        code = _run(args.command, args)
        sys.stdout.flush()
    except SegueError as error:
        return _failed(error, args)
    except BrokenPipeError:
        _drop_output()
        return PIPE
    except OSError as error:
        return _unreachable(error, args)
    except KeyboardInterrupt:
        sys.stderr.write("segue: interrupted\n")
        return INTERRUPTED
    except Exception as error:
        if args.debug:
            raise
        _say(f"a mistake of segue itself: {type(error).__name__}: {error}; run it again with --debug and report it")
        return BUG
    return code


def _misread(error: WrongWords, argv: Sequence[str]) -> int:
    """Say what cannot be understood; without a command that was, the words alone tell who is to read it."""
    options = argv[: argv.index("--")] if "--" in argv else argv
    if "--json" in options:
        sys.stderr.write(as_json(as_value(Invalid(error.said), scope="")) + "\n")
    else:
        sys.stderr.write(error.usage)
        remark(sys.stderr, error.said)
    return USAGE


def _fill_streams() -> None:
    """Put something in the place of standard streams that the process was started without (``>&-``)."""
    for name, flags, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:  # what takes no writes makes the loss of the output known at the end
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8"))


def _drop_output() -> None:
    """Nobody can read the output: throw away what waits, so that the end of the process does not fail on it."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unreachable(error: OSError, args: Namespace) -> int:
    """Say which file, or that the output, could not be read or written."""
    if error.filename is None:
        _drop_output()
    what = "the output cannot be written" if error.filename is None else f"{error.filename} cannot be used"
    told = Unavailable(f"{what}: {error.strerror or error}")
    told.__cause__ = error
    return _failed(told, args)


def _run(command: Command, args: Namespace) -> int:
    if command.everybody and (args.tenant or args.user):
        raise Invalid(f"{command.name} looks at all owners; leave --tenant and --user out", where="tenant")
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
    remark(sys.stderr, f"segue: {' '.join(text.split())}")

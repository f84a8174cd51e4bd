"""The exit status of a command, and its error message in one line on standard error."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import TypeGuard

import click

from rbtools.cli.declare import no_such_option
from rbtools.cli.output import DONE, FAILED, ReaderGone, Stop, Terminated
from rbtools.cli.terminal import Terminal
from rbtools.errors import NoRecords, RbError, near, of_network, of_own_code

USAGE, EMPTY, INTERRUPTED, GONE, TERMINATED = 2, 3, 130, 141, 143


@dataclass
class Ended:
    status: int = DONE


@contextlib.contextmanager
def caught(command: click.Command, name: str) -> Iterator[Ended]:
    """Run a command inside the block; an error is printed and determines the exit status."""
    screen, result = Terminal(name), Ended()
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate)
        yield result
    except click.exceptions.Exit as wanted:
        result.status = wanted.exit_code
    except click.ClickException as wrong:
        context_ = wrong.ctx if isinstance(wrong, click.UsageError) else None
        path = context_.command_path if context_ is not None else name
        screen.error(f"{sentence(wrong)} Try '{path} --help'.")
        result.status = USAGE
    except Stop as stop:
        screen.error(str(stop))
        result.status = FAILED
    except RbError as wrong:
        screen.error(str(wrong))
        result.status = EMPTY if isinstance(wrong, NoRecords) else USAGE
    except (KeyboardInterrupt, click.Abort, Terminated) as ended:
        terminated = isinstance(ended, Terminated)
        result.status = TERMINATED if terminated else INTERRUPTED
        screen.clear()
        kept = "; finished results were written and stored" if _stores(command) else ""
        screen.error(f"{'terminated' if terminated else 'interrupted'}{kept}.")
    except (ReaderGone, BrokenPipeError):
        _drop_stdout()
        result.status = GONE
    except Exception as bug:
        screen.clear()
        if (words := of_network(bug) or of_own_code(bug)) is not None:
            screen.error(words)
        elif _of_output(bug):
            screen.error(f"Cannot write to standard output: {bug.strerror}. Write to another file or disk.")
            _drop_stdout()
        else:
            traceback.print_exc()
            screen.error("this is a bug in rbtools; please report it with the lines above.")
        result.status = FAILED


def _of_output(bug: Exception) -> TypeGuard[OSError]:
    """True if the system could not write a help text or a listing, for example because the disk is full."""
    return isinstance(bug, OSError) and traceback.extract_tb(bug.__traceback__)[-1].name == "echo"


def _stores(command: click.Command) -> bool:
    """True if the command or one of its subcommands stores its results, and can replace them (--force)."""
    tool = getattr(command, "tool", None)
    held = command.commands.values() if isinstance(command, click.Group) else ()
    own = any(one.name == "replace" for one in [*command.params, *(tool.options if tool else ())])
    return own or any(map(_stores, held))


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _drop_stdout() -> None:
    """Prevent Python from flushing to a closed pipe when it exits."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def sentence(wrong: click.ClickException) -> str:
    if isinstance(wrong, click.NoSuchOption):
        if wrong.ctx is None:
            return f"No such option '{wrong.option_name}'."
        params = wrong.ctx.command.get_params(wrong.ctx)
        options = [one for one in params if isinstance(one, click.Option) and not one.hidden]
        flags = [flag for one in options for flag in [*one.opts, *one.secondary_opts]]
        tool, classes = getattr(wrong.ctx.command, "tool", None), wrong.ctx.meta.get("rbtools.classes", ())
        if tool is None:
            return no_such_option(wrong.option_name, flags)
        return str(tool.no_such_option(wrong.option_name, classes, flags))
    text = " ".join(wrong.format_message().split())
    command = wrong.ctx.command if isinstance(wrong, click.UsageError) and wrong.ctx is not None else None
    if isinstance(command, click.Group) and (name := re.fullmatch(r"No such command '([^']*)'\.", text)):
        return text + near(name[1], command.commands)
    return text if text.endswith((".", "?", "!")) else text + "."

"""Where a command ends: errors become one line on stderr and an exit code, never a traceback for what is not a bug.

0 done · 1 it failed (or `log verify` found damage) · 2 the command line is wrong · 130 Ctrl-C · 141 the reader of our
output went away. A bug of ours still shows its traceback.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar

import typer

from tidelog.errors import TidelogError
from tidelog.storage.disk import DiskError

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

INTERRUPTED = 130
BROKEN_PIPE = 141


class CommandError(TidelogError):
    """Something a command could not do, said in one line for the person at the terminal."""


def plain_typer(help: str) -> typer.Typer:
    """A command group whose help and usage errors are plain text: fast, and the same in a log file."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    )


def reported(command: Callable[P, R]) -> Callable[P, R]:
    """Decorator for every command."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result = command(*args, **kwargs)
            sys.stdout.flush()
            return result
        except KeyboardInterrupt:
            _leave(INTERRUPTED)
        except BrokenPipeError:
            _leave(BROKEN_PIPE)
        except (TidelogError, DiskError, OSError) as error:
            for line in lines_of(error):
                print(f"error: {line}", file=sys.stderr)
            raise typer.Exit(1) from None

    return run


def lines_of(error: BaseException) -> list[str]:
    """One line, with the notes added on the way up; several only where an error lists several problems."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    lines = text.splitlines() or [type(error).__name__]
    return [*lines[:-1], "; ".join([lines[-1], *getattr(error, "__notes__", [])])]


def _leave(code: int) -> NoReturn:
    """Exit without a word, even if flushing what is left in stdout's buffer would fail."""
    try:
        sys.stdout.flush()
    except (BrokenPipeError, ValueError):
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except (OSError, ValueError):
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  stdout is no real file: under test
    raise typer.Exit(code) from None


def our_name() -> dict[str, Any]:
    """What clients of a command tell brokers about themselves, as options of a Producer or a Consumer."""
    from tidelog import __version__

    return {"client_id": "tidelog-cli", "client_version": __version__}


def with_cluster(bootstrap_servers: str, work: Callable[[ClusterClient], Awaitable[T]], **settings: Any) -> T:
    """Run `work` with a connected cluster client, on an event loop of its own. `settings` are those of the client.

    Also for commands that produce or consume: a producer and a consumer wait for their cluster, a command fails at once where there is none.
    """
    import asyncio
    import logging

    from tidelog.client.cluster import ClusterClient, TopicMissingError
    from tidelog.client.errors import BrokerUnreachableError
    from tidelog.client.settings import ClientSettings

    async def session() -> T:
        async with ClusterClient(bootstrap_servers, ClientSettings(**our_name(), **settings)) as cluster:
            return await work(cluster)

    # What the client logs for applications, a command says itself, once.
    log = logging.getLogger("tidelog.client")
    if not log.handlers:
        log.addHandler(logging.NullHandler())

    try:
        return asyncio.run(session())
    except ValueError as error:
        if "bootstrap server" not in str(error):
            raise
        raise typer.BadParameter(str(error), param_hint="--bootstrap-server") from None
    except BrokerUnreachableError as error:
        error.add_note("start one with `tidelog start`, or name another with --bootstrap-server")
        raise
    except TopicMissingError as error:
        error.add_note(f"see `tidelog topic list`, or create it with `tidelog topic create {error.topic}`")
        raise

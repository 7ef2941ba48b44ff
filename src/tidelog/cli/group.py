"""`tidelog group`: list, describe, reset, delete, delete-offsets."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import note, print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.client.errors import BrokerError
    from tidelog.client.groups import Groups, ListedGroup

T = TypeVar("T")

app = plain_typer("List, describe, move and delete consumer groups.")

Name = Annotated[str, typer.Argument(metavar="GROUP")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP", help="One group or several.")]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:0,1,…]", help="All its partitions, or some; repeatable."),
]

STATES = (
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Stable",
    "NotReady",
    "Empty",
    "Dead",
)
TYPES = ("classic", "consumer", "share", "streams")


def with_groups(bootstrap_servers: str, work: Callable[[Groups], Awaitable[T]]) -> T:
    """Run `work` against a cluster's groups; what a broker refuses is told with what to do about it."""
    from tidelog.client.errors import BrokerError
    from tidelog.client.groups import Groups

    try:
        return with_cluster(bootstrap_servers, lambda cluster: work(Groups(cluster)))
    except BrokerError as error:
        if advice := _advice(error):
            error.add_note(advice)
        raise


def _advice(error: BrokerError) -> str | None:
    from tidelog.wire.error_codes import ErrorCode

    known: dict[int, str] = {
        ErrorCode.GROUP_ID_NOT_FOUND: "see `tidelog group list`",
        ErrorCode.NON_EMPTY_GROUP: "stop its members first: `tidelog group describe --members` names them",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: (
            "members of the group read the topic; stop them, or let them subscribe to something else"
        ),
        ErrorCode.UNKNOWN_MEMBER_ID: "a member has joined meanwhile; stop it, then try again",
    }
    return known.get(error.code)


@app.command(name="list")
@reported
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only groups in this state; repeatable.")
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="|".join(TYPES), help="Only groups of this type; repeatable."),
    ] = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """List groups, with their type and state."""
    states = _known(state, STATES, "--state")
    types = _known(type_, TYPES, "--type")

    async def work(groups: Groups) -> list[ListedGroup]:
        return await groups.list_groups(states=states, types=types)

    found = with_groups(bootstrap_server, work)
    if json:
        print_json(
            [
                {"group": g.group_id, "type": g.type, "state": g.state, "protocol_type": g.protocol_type}
                for g in found
            ]
        )
    elif not found:
        note(
            "no such groups"
            if states or types
            else "no groups yet; `tidelog consume TOPIC --group NAME` makes one"
        )
    else:
        rows = [(g.group_id, g.type or None, g.state or None, g.protocol_type or None) for g in found]
        print_table(("group", "type", "state", "protocol"), rows)


@app.command()
@reported
def describe(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]…", help="One group or several.", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every group there is.")] = False,
    members: Annotated[
        bool, typer.Option("--members", "-m", help="Members and what they have, no offsets.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", "-s", help="One line for each group, no offsets.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Show what a group has committed, how far behind it is, and who reads what."""
    if all_ == bool(names):
        raise typer.BadParameter("say which groups: name them, or --all")
    if members and state:
        raise typer.BadParameter("--members and --state exclude each other")

    async def work(groups: Groups) -> list[dict[str, Any]]:
        from tidelog.cli.group_report import describe_all, describe_group

        if all_:
            return await describe_all(groups, offsets=not (members or state))
        return [
            await describe_group(groups, name, offsets=not (members or state))
            for name in dict.fromkeys(names or ())
        ]

    reports = with_groups(bootstrap_server, work)
    from tidelog.cli.group_report import print_groups, print_states, warnings_of

    for report in reports:
        warn(warnings_of(report))
    if json:
        print_json(reports)
    elif not reports:
        note("no groups yet")
    elif state:
        print_states(reports)
    else:
        print_groups(reports, members=members)


@app.command()
@reported
def reset(
    name: Name,
    topic: Topics = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Every partition where the group has committed.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the oldest record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="To the first record of that time: ISO 8601, or ms."
        ),
    ] = None,
    by_duration: Annotated[
        str | None,
        typer.Option(
            "--by-duration", metavar="DURATION", help="To the first record of so long ago: PT1H, 30m."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="On by N records; back if N is negative.")
    ] = None,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="Where it is; the end where it has committed nothing.")
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; otherwise it is only shown.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Move the committed offsets of a group that has no members.

    Shows what it would do and changes nothing, unless told to --execute. Offsets outside of what a partition has are moved to its
    first or its end offset.
    """
    from tidelog.cli.group_reset import choose_target, parse_topics, prepare, print_moves, report

    if all_topics == bool(topic):
        raise typer.BadParameter("say which topics: --topic TOPIC, or --all-topics")
    topics = parse_topics(topic or ())
    target = choose_target(
        time.time_ns() // 1_000_000,
        to_earliest=to_earliest,
        to_latest=to_latest,
        to_offset=to_offset,
        to_datetime=to_datetime,
        by_duration=by_duration,
        shift_by=shift_by,
        to_current=to_current,
    )

    async def work(groups: Groups) -> Any:
        moves = await prepare(groups, name, topics, target)
        if execute:
            await groups.commit(name, {move.tp: move.after for move in moves})
        return moves

    moves = with_groups(bootstrap_server, work)
    if json:
        print_json(report(name, moves, executed=execute))
        return
    print_moves(moves)
    print(f"moved group {name}" if execute else "nothing was changed; add --execute to do this")


@app.command()
@reported
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Delete groups without members, and what they have committed."""
    names = list(dict.fromkeys(names))
    if not yes:
        _confirm(f"Delete {', '.join(names)} and all committed offsets?")

    async def work(groups: Groups) -> None:
        for name in names:
            await groups.delete(name)
            if not json:
                print(f"deleted group {name}")

    with_groups(bootstrap_server, work)
    if json:
        print_json([{"group": name, "deleted": True} for name in names])


@app.command(name="delete-offsets")
@reported
def delete_offsets(
    name: Name,
    topic: Topics = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Forget what a group has committed for a topic that it reads no more."""
    from tidelog.cli.group_reset import parse_topics

    if not topic:
        raise typer.BadParameter("say which topic: --topic TOPIC")
    topics = parse_topics(topic)

    async def work(groups: Groups) -> Any:
        await groups.describe(name)
        found = await groups.offsets(name)
        chosen = [
            tp
            for tp in sorted(found)
            if tp.topic in topics and (topics[tp.topic] is None or tp.partition in (topics[tp.topic] or ()))
        ]
        if not chosen:
            raise CommandError(
                f"group {name} has nothing committed for {', '.join(topic)}; `tidelog group describe {name}` shows what it has"
            )
        await groups.delete_offsets(name, chosen)
        return [
            {"topic": tp.topic, "partition": tp.partition, "committed": found[tp].offset} for tp in chosen
        ]

    deleted = with_groups(bootstrap_server, work)
    if json:
        print_json({"group": name, "deleted": deleted})
        return
    for one in deleted:
        print(
            f"deleted the offset of group {name} in {one['topic']}-{one['partition']} (it was {one['committed']})"
        )


def _known(given: list[str] | None, known: tuple[str, ...], option: str) -> list[str]:
    """In the spelling of the broker: a state that does not exist would be an empty list without a word."""
    spelling = {name.lower(): name for name in known}
    for text in given or ():
        if text.lower() not in spelling:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(known)}", param_hint=option)
    return [spelling[text.lower()] for text in given or ()]


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise CommandError("nothing was deleted: nobody is there to ask; add --yes to delete without asking")
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was deleted")

"""`tidelog dlq`: what a dead-letter topic holds, why, and sending it back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidelog.cli.boundary import CommandError, our_name, plain_typer, reported, with_cluster
from tidelog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Json
from tidelog.cli.output import bytes_field, note, print_json, print_table, warn

if TYPE_CHECKING:
    from tidelog.client.dead_letter_topic import DeadLetter

app = plain_typer("Dead letters: records that could not be dealt with, why, and the way back.")
VALUE_CHARACTERS = 60

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The dead-letter topic.")]


@app.command("list")
@reported
def list_(
    topic: Topic,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Also those that were sent back.")] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Each dead letter with where it was, why it is here, and how often it was tried."""
    letters = _read(bootstrap_server, topic, all_)
    if json:
        for letter in letters:
            print_json(_as_json(letter))
        return
    print_table(
        ("place", "from", "attempts", "reason", "key", "value", "state"),
        (
            (
                letter.place,
                f"{letter.origin.topic}-{letter.origin.partition} at {letter.origin.offset}",
                letter.origin.attempts,
                _short(letter.origin.reason),
                _shown(letter.key),
                _shown(letter.value),
                "redriven" if letter.is_redriven else "waiting",
            )
            for letter in letters
        ),
        right=("attempts",),
    )
    if not letters:
        note(f"no dead letters wait in {topic}; --all shows those that were sent back")


@app.command()
@reported
def show(
    topic: Topic,
    place: Annotated[str, typer.Argument(metavar="PLACE", help="partition:offset, as `dlq list` shows it.")],
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """One dead letter in full: key, value and headers as they were, and its history."""
    (letter,) = _chosen(_read(bootstrap_server, topic, True), [place], topic)
    if json:
        print_json(_as_json(letter))
        return
    origin = letter.origin
    print(f"place:     {letter.place} of {topic}{' (redriven)' if letter.is_redriven else ''}")
    print(
        f"from:      {origin.topic}-{origin.partition} at offset {origin.offset}, timestamp {origin.timestamp_ms}"
    )
    print(f"reason:    {origin.reason}")
    print(f"attempts:  {origin.attempts}, by group {origin.group or '-'}")
    for name, content in letter.headers:
        print(f"header:    {name} = {_text(content)}")
    print(f"key:       {_text(letter.key)}")
    print(f"value:     {_text(letter.value)}")


@app.command()
@reported
def redrive(
    topic: Topic,
    places: Annotated[
        list[str] | None, typer.Argument(metavar="[PLACE]...", help="partition:offset of each; or --all.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="All that wait.")] = False,
    value: Annotated[
        str | None, typer.Option("--value", help="Send this instead: the mended value of one record.")
    ] = None,
    value_file: Annotated[
        Path | None,
        typer.Option(
            "--value-file", exists=True, dir_okay=False, help="The same from a file, byte for byte."
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="TOPIC", help="To this topic instead of the original one.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be sent, and send nothing.")
    ] = False,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json: Json = False,
) -> None:
    """Send dead letters back to where they came from, with their own key, value and headers.

    The dead-letter topic gets a note for each, so that it is not sent twice by mistake.
    """
    if bool(places) == all_:
        raise typer.BadParameter("name the places of some, or say --all")
    if value is not None and value_file is not None:
        raise typer.BadParameter("--value and --value-file exclude each other")
    mended = (
        value.encode() if value is not None else value_file.read_bytes() if value_file is not None else None
    )
    if mended is not None and (all_ or len(places or ()) != 1):
        raise typer.BadParameter("a mended value is for one record: name its place")
    letters = _read(bootstrap_server, topic, not all_)
    chosen = letters if all_ else _chosen(letters, places or [], topic)
    again = [letter.place for letter in chosen if letter.is_redriven]
    if again:
        warn([f"{', '.join(again)} of {topic}: sent back before, and now once more"])
    if dry_run:
        for letter in chosen:
            print(f"{letter.place} -> {to or letter.origin.topic}")
        return
    with_cluster(bootstrap_server, lambda _: _redrive(bootstrap_server, topic, chosen, mended, to, json))


async def _redrive(
    bootstrap_server: str,
    topic: str,
    letters: list[DeadLetter],
    mended: bytes | None,
    to: str | None,
    json: bool,
) -> None:
    from tidelog.client.dead_letter_topic import redrive as send_back
    from tidelog.client.producer.producer import Producer

    async with Producer(bootstrap_server, linger_ms=0, **our_name()) as producer:
        for letter in letters:
            place = await send_back(producer, topic, letter, value=mended, to=to)
            if json:
                print_json(
                    {
                        "place": letter.place,
                        "topic": place.topic,
                        "partition": place.partition,
                        "offset": place.offset,
                    }
                )
            else:
                print(f"{letter.place} -> {place.topic}-{place.partition} at offset {place.offset}")


def _read(bootstrap_server: str, topic: str, with_redriven: bool) -> list[DeadLetter]:
    from tidelog.client.dead_letter_topic import read_dead_letters

    contents = with_cluster(bootstrap_server, lambda _: read_dead_letters(bootstrap_server, topic))
    if contents.others:
        warn([f"{contents.others} records of {topic} are no dead letters: they have no dlq.* headers"])
    return [letter for letter in contents.letters if with_redriven or not letter.is_redriven]


def _chosen(letters: list[DeadLetter], places: list[str], topic: str) -> list[DeadLetter]:
    by_place = {letter.place: letter for letter in letters}
    missing = [place for place in places if place not in by_place]
    if missing:
        raise CommandError(
            f"{topic} has no dead letter at {', '.join(missing)}; `tidelog dlq list {topic} --all` shows what there is"
        )
    return [by_place[place] for place in places]


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    origin = letter.origin
    return {
        "place": letter.place,
        "topic": origin.topic,
        "partition": origin.partition,
        "offset": origin.offset,
        "timestamp_ms": origin.timestamp_ms,
        "reason": origin.reason,
        "attempts": origin.attempts,
        "group": origin.group,
        "redriven": letter.is_redriven,
        **bytes_field("key", letter.key),
        **bytes_field("value", letter.value),
        "headers": [{"name": name, **bytes_field("value", content)} for name, content in letter.headers],
    }


def _text(data: bytes | None) -> str:
    return "(null)" if data is None else data.decode("utf-8", "backslashreplace")


def _shown(data: bytes | None) -> str:
    return _short(_text(data))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= VALUE_CHARACTERS else line[: VALUE_CHARACTERS - 1] + "…"

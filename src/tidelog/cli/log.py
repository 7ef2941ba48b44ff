"""`tidelog log`: look into the files of a stopped broker, Kafka's or ours, without changing a byte."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tidelog.cli.boundary import CommandError, plain_typer, reported
from tidelog.cli.options import Json
from tidelog.cli.output import human_bytes, print_json, warn

app = plain_typer("Dump, verify and export the files of a stopped broker.")

Records = Annotated[bool, typer.Option("--records", "-r", help="Look at every record, not only at batches.")]


@app.command()
@reported
def dump(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Files of a log, or partition directories.")
    ],
    records: Records = False,
    json: Json = False,
) -> None:
    """Show what a file holds: .log, .index, .timeindex, .txnindex, .snapshot and the checkpoint files.

    One line per batch or entry (with --json, one JSON object). Ends with exit code 1 where the file is damaged.
    """
    from tidelog.cli.log_dump import dump_file, dumpable_files
    from tidelog.errors import CorruptDataError

    damaged = False
    for path in [found for file in files for found in dumpable_files(str(file))]:
        rows = dump_file(path, records=records)
        if not json:
            print(path)
        try:
            for row in rows:
                print_json({"file": path, **row}) if json else print(_line(row))
        except CorruptDataError as error:
            damaged = True
            print_json({"file": path, "damage": str(error)}) if json else print(f"  damaged: {error}")
    if damaged:
        raise typer.Exit(1)


@app.command()
@reported
def verify(
    directories: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="A broker's data directory, or one partition's directory."),
    ],
    records: Records = False,
    json: Json = False,
) -> None:
    """Check every batch's CRC, that offsets rise, and that indexes and checkpoints agree with the log.

    Nothing is changed. Exit code 1 when there is damage; each finding names file, position and offset.
    """
    from tidelog.cli.in_use import in_use
    from tidelog.cli.log_verify import Verification

    verification = Verification(deep=records)
    for directory in map(str, directories):
        if not Path(directory).is_dir():
            raise CommandError(
                f"{directory} is no directory; give a data directory or a partition's directory"
            )
        if in_use(directory):
            warn(
                [
                    f"a broker is using {directory}: what it writes meanwhile may look like damage; stop it first"
                ]
            )
        verification.directory(directory)
    if not verification.partitions:
        raise CommandError(f"no partitions in {', '.join(map(str, directories))}; give a data directory")
    if json:
        print_json(verification.report())
    else:
        for damage in verification.damage:
            print(damage)
        print(_summary(verification.report()))
    if verification.damage:
        raise typer.Exit(1)


@app.command()
@reported
def export(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="PATH", help="A data directory, a partition's directory, or .log files."),
    ],
    to: Annotated[str, typer.Option("--to", metavar="FILE", help="The file to write: .parquet or .arrow.")],
    json: Json = False,
) -> None:
    """Write the records of segments to one Parquet or Arrow file, a row per record.

    Columns: topic, partition, offset, timestamp, key, value, headers. Needs the arrow extra (pip install 'tidelog[arrow]').
    """
    from tidelog.cli.log_export import export as write
    from tidelog.cli.log_export import sources
    from tidelog.cli.output import byte_progress

    segments = sources([str(path) for path in paths])
    with byte_progress("exporting") as on_progress:
        rows = write(segments, to, on_progress=on_progress)
    if json:
        print_json({"file": to, "records": rows, "segments": len(segments)})
    else:
        print(f"wrote {rows:,} records of {len(segments)} segments to {to}")


def _line(row: dict[str, Any]) -> str:
    depth = "    " if row.get("type") == "record" else "  "
    return depth + "  ".join(f"{name}={_shown(value)}" for name, value in row.items() if name != "type")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return repr(value) if isinstance(value, str) and (not value or " " in value) else str(value)


def _summary(report: dict[str, Any]) -> str:
    counted = (
        f"{report['partitions']} partitions, {report['segments']} segments, {report['batches']:,} batches, "
        f"{report['records']:,} records, {human_bytes(report['bytes'])}"
    )
    return f"checked {counted}: {len(report['damage']) or 'no'} damage" + (
        "d places" if report["damage"] else ""
    )

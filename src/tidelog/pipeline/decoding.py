"""From the bytes of records to columns: what every format of values can do, and how a batch is decoded with a schema that is settled, or may have to grow.

A decoder marks records that it cannot decode (`PROBLEM`) instead of failing, and never drops one. What it knows of the schema is kept in the flow's state, so that a restart decodes as before;
how that may change is the flow's policy. It looks at a batch once where nothing is new: what it has to know beside the rows is observed while they are written.
"""

from __future__ import annotations

import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from tidelog.errors import TidelogError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from tidelog.pipeline.tables import SchemaChanges

Format = Literal["json", "avro", "raw"]
Framing = Literal["none", "registry"]

DATA: Final = "tidelog_data"
"""The decoded value, a struct; null where there is none."""
PROBLEM: Final = "tidelog_problem"
"""Why a record cannot be decoded, null if it can; empty: `Decoder.explain` finds out."""
FRAME_BYTES: Final = 5
"""Of a registry's frame: a zero, and four bytes with the number of the schema."""
NO_FRAME: Final = "the value has no frame of a schema registry: it must begin with a zero byte and four bytes with the number of its schema"
PASSES_MAX: Final = 5
"""How often a batch is decoded at most until its schema is known."""


class Place(NamedTuple):
    """Columns: what is decoded, into what, and where it says why not."""

    encoded: str
    data: str
    problem: str


VALUE: Final = Place("value", DATA, PROBLEM)


class DecodingError(TidelogError):
    """Records cannot be decoded by what the flow was told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    flow: str
    format: Format
    schema: str | None = None
    framing: Framing = "none"
    registry: str | None = None
    schema_changes: SchemaChanges = "add"
    columns: StructType | None = None
    """What rows have, if that is settled: nothing is found out and nothing added, and one pass decodes a batch. A plan that Spark keeps over batches needs that."""
    state: str
    """The flow's directory."""


class Decoder(ABC):
    def __init__(self, settings: DecoderSettings) -> None:
        self.settings = settings

    def prepare(self, frame: DataFrame) -> None:
        """Before a batch is decoded: find out what must be known first."""
        return

    @abstractmethod
    def decode(self, frame: DataFrame) -> DataFrame:
        """The source's columns, DATA and PROBLEM."""

    def observed(self) -> dict[str, Column]:
        """Aggregates over what `decode` gives that `learn` wants to see."""
        return {}

    def learn(self, frame: DataFrame, seen: Mapping[str, Any]) -> bool:
        """Whether the batch showed something new that it has to be decoded again with. SchemaChangeError where the policy forbids it."""
        return False

    def explain(self, value: bytes | None, said: str) -> str:
        """Why a record could not be decoded, from what PROBLEM says. Called on executors, for the few that are wrong."""
        return said


class RawDecoder(Decoder):
    """Key and value as they are."""

    def decode(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        return frame.withColumns({DATA: f.struct("key", "value"), PROBLEM: f.lit(None).cast("string")})


class SchemaDecoder(Decoder):
    """By a schema: a settled one, or one that was given or found out and has grown since. What it has become is kept."""

    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__(settings)
        given, columns = (None, None) if settings.schema is None else self._read(settings.schema)
        self._given = given
        self._kept = KeptSchema(settings.state, given)
        self.schema = settings.columns if settings.columns is not None else self._kept.load()
        if self.schema is None:
            self.schema = columns

    @abstractmethod
    def _read(self, given: str) -> tuple[str, StructType]:
        """A schema as it is compared with what it was before, and its columns. DecodingError if it is none."""

    @property
    def _is_framed(self) -> bool:
        return self.settings.framing == "registry"


def has_frame() -> Column:
    """Whether a value begins as a registry's frame does."""
    from pyspark.sql import functions as f

    return (f.octet_length("value") >= FRAME_BYTES) & (f.substring("value", 1, 1) == f.lit(b"\0"))


def open_decoder(settings: DecoderSettings) -> Decoder:
    if settings.format == "json":
        from tidelog.pipeline.decoding_json import JsonDecoder

        return JsonDecoder(settings)
    if settings.format == "avro":
        from tidelog.pipeline.decoding_avro import AvroDecoder

        return AvroDecoder(settings)
    return RawDecoder(settings)


class KeptSchema:
    """The schema of a flow's records, in a file of its state. A given one that has changed counts anew."""

    def __init__(self, state: str, given: str | None) -> None:
        self._path = os.path.join(state, "schema.json")
        self._given = given

    def load(self) -> StructType | None:
        from pyspark.sql.types import StructType

        try:
            with open(self._path) as file:
                kept = json.load(file)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise DecodingError(
                f"{self._path} cannot be read ({error}): remove it, and the schema is found out again"
            ) from None
        return StructType.fromJson(kept["schema"]) if kept["given"] == self._given else None

    def save(self, schema: StructType) -> None:
        write_atomically(self._path, json.dumps({"given": self._given, "schema": schema.jsonValue()}))


def write_atomically(path: str, text: str) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}.")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise

"""What only brokers and disks can tell of a specification: whether topics exist, and whether what is written to can be. Changes nothing that stays."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tidelog.pipeline.context import FromTopics
from tidelog.pipeline.values import Flow, Pipeline

if TYPE_CHECKING:
    from tidelog.client.cluster import ClusterClient

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


async def check_online(pipeline: Pipeline, cluster: ClusterClient) -> tuple[list[str], list[str]]:
    """What cannot work, and what is worth knowing."""
    metadata = await cluster.refresh_metadata(None)
    topics = frozenset(name for name, info in metadata.topics.items() if not info.error_code)
    problems: list[str] = []
    notes: list[str] = []
    for flow in pipeline.flows:
        where = f"flow {flow.name}"
        problems += [f"{where}: {each}" for each in missing_topics(flow, topics)]
        notes += [f"{where}: {each}" for each in _notes(flow, topics)]
        for place in flow.options.places_written():
            if (why := why_not_writable(place)) is not None:
                problems.append(f"{where}: {place} cannot be written to: {why}")
    if (why := why_not_writable(pipeline.state)) is not None:
        problems.append(f"the state directory {pipeline.state} cannot be written to: {why}")
    return problems, notes


def missing_topics(flow: Flow, topics: frozenset[str]) -> Iterator[str]:
    if isinstance(flow.options, FromTopics):
        for topic in flow.options.topics:
            if topic not in topics:
                yield f"there is no topic {topic}: create it with `tidelog topic create {topic}`"


def _notes(flow: Flow, topics: frozenset[str]) -> Iterator[str]:
    options = flow.options
    if isinstance(options, FromTopics) and options.pattern and not any(map(options.reads_topic, topics)):
        yield f"no topic is called {options.pattern} yet; those that come later are read"
    for topic in options.topics_written():
        if topic not in topics:
            yield f"there is no topic {topic} yet: it comes into being with the first record, if the brokers create topics"


def why_not_writable(place: str) -> str | None:
    """None if a file can be made there, or if only Spark can tell (URLs)."""
    if _URL.match(place):
        return None
    directory = place if os.path.isdir(place) else os.path.dirname(place)
    while directory and not os.path.lexists(directory):
        directory = os.path.dirname(directory)
    try:
        with tempfile.NamedTemporaryFile(dir=directory or ".", prefix=".tidelog-"):
            return None
    except OSError as error:
        return f"{directory}: {error.strerror}"

"""What cannot work although each flow by itself is fine: flows that get in each other's way. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from tidelog.pipeline.options import Problem

if TYPE_CHECKING:
    from tidelog.pipeline.values import Flow


def between_flows(flows: Sequence[Flow], state: str | None) -> Iterator[tuple[int, Problem]]:
    """The later of two flows is the one with the problem. `state` is the pipeline's directory, if it is known."""
    yield from _same_names(flows)
    yield from _same_places(flows)
    yield from _loops(flows)
    if state is not None:
        yield from _within_state(flows, state)


def _same_names(flows: Sequence[Flow]) -> Iterator[tuple[int, Problem]]:
    first: dict[str, str] = {}
    for number, flow in enumerate(flows):
        folded = flow.name.casefold()  # checkpoints are directories, and some disks do not tell A from a
        if folded in first:
            yield (
                number,
                Problem(
                    "name",
                    f"there is a flow {first[folded]} already, and its checkpoint is kept under that name",
                ),
            )
        first.setdefault(folded, flow.name)


def _same_places(flows: Sequence[Flow]) -> Iterator[tuple[int, Problem]]:
    taken: list[tuple[str, str]] = []
    for number, flow in enumerate(flows):
        for place in flow.options.places_written():
            for other, owner in taken:
                if owner != flow.name and _within(place, other):
                    yield (
                        number,
                        Problem(
                            _key(flow, place),
                            f"flow {owner} writes to {other}, too: each needs a place of its own",
                        ),
                    )
                    break
                if owner != flow.name and _within(other, place):
                    yield (
                        number,
                        Problem(_key(flow, place), f"flow {owner} writes to {other}, which is inside it"),
                    )
                    break
        taken += [(place, flow.name) for place in flow.options.places_written()]


def _loops(flows: Sequence[Flow]) -> Iterator[tuple[int, Problem]]:
    for number, flow in enumerate(flows):
        for topic in _topics_written(flow):
            if flow.options.reads_topic(topic):
                yield (
                    number,
                    Problem(
                        _key(flow, topic),
                        f"the flow reads {topic}, too: it would read what it has written, for ever",
                    ),
                )


def _topics_written(flow: Flow) -> Iterator[str]:
    yield from flow.options.topics_written()
    if getattr(flow.options, "on_undecodable", None) == "dead-letter":
        yield getattr(flow.options, "dead_letter_topic", None) or f"{flow.name}.dlq"


def _within_state(flows: Sequence[Flow], state: str) -> Iterator[tuple[int, Problem]]:
    for number, flow in enumerate(flows):
        for place in flow.options.places_written():
            if _within(place, state):
                yield (
                    number,
                    Problem(
                        _key(flow, place),
                        f"{place} is inside {state}, which is for checkpoints: write elsewhere",
                    ),
                )
            elif _within(state, place):
                yield (
                    number,
                    Problem(_key(flow, place), f"the directory for checkpoints, {state}, is inside {place}"),
                )


def _key(flow: Flow, value: str) -> str:
    """The option that says this value; empty if none says exactly that."""
    return next((each.name for each in fields(flow.options) if getattr(flow.options, each.name) == value), "")


def _within(place: str, other: str) -> bool:
    """The same place, or one inside the other. Places that are no paths are only the same."""
    if place == other:
        return True
    if re.match(r"[a-z][a-z0-9+.-]*:", other, re.IGNORECASE):
        return place.startswith(other.rstrip("/") + "/")
    return os.path.normpath(place).startswith(os.path.normpath(other) + os.sep)

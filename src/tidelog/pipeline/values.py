"""The values that a pipeline is made from: settings that all flows share, and the flows. Made by `spec`, or in Python. Pure."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import ModuleType
from typing import Any, Final, Literal, TypeVar

from tidelog.pipeline.job_modules import job_module
from tidelog.pipeline.options import IS_PATH, Options, OptionsError, PathText, Problem

AVAILABLE_NOW: Final = "available now"
_INTERVAL: Final = re.compile(r"\d+ (?:millisecond|second|minute|hour|day)s?")
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_SQLITE: Final = "sqlite:///"
"""The one URL with a path in it that may be relative."""

T = TypeVar("T", bound=Options)
OnFailure = Literal["continue", "stop", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(Options):
    """The table `[pipeline]`."""

    name: str = "pipeline"
    """How the application is called in Spark, and in what is shown."""
    brokers: str = "127.0.0.1:9092"
    """Where the log is: host:port of one broker or more, with commas between. Of any Kafka."""
    state: PathText = "pipeline-state"
    """A directory for checkpoints, the status and Spark's log. Whoever loses it begins anew."""
    checkpoints: PathText | None = None
    """A directory or URL for checkpoints alone, if not in `state`: on a cluster, one that the driver and all executors reach (hdfs://…, s3a://…, a shared mount)."""
    master: str = "local[*]"
    """Where Spark runs: local[*], spark://host:port, yarn, k8s://https://host:port."""
    trigger: str = "1 second"
    """How often a batch begins: an interval such as 500 milliseconds or 1 minute, 0 seconds for as soon as the last one is done, or "available now": what is there, then stop."""
    on_failure: OnFailure = "continue"
    """What happens when a flow fails: continue (the others go on, the exit code is 1), stop (all stop), restart (that flow starts again after a pause that grows from 1 second to 1 minute)."""
    restarts_max: int = 10
    """How often a flow is started again before it counts as failed. An hour without failure forgets the failures before it."""
    client: Mapping[str, str] = field(default_factory=dict)
    """Settings of every client, under Kafka's names: isolation.level, fetch.max.bytes and the like. There is no TLS or SASL yet."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark, under Spark's names: spark.driver.memory and the like."""

    def check(self) -> Iterator[Problem]:
        yield from trigger_problems(self.trigger)
        if self.restarts_max < 0:
            yield Problem("restarts_max", f"must not be negative, and is {self.restarts_max}")
        for key in self.spark:
            if not key.startswith("spark."):
                yield Problem(
                    f"spark.{key}", f"settings of Spark begin with spark.: did you mean spark.{key}?"
                )
        for key in self.client:
            if key.startswith("kafka."):
                yield Problem(
                    f"client.{key}", f"is written without kafka. here: {key.removeprefix('kafka.')}"
                )
        if "bootstrap.servers" in self.client:
            yield Problem("client.bootstrap.servers", "is said by brokers")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings(Options):
    """What every `[[flow]]` has; all else in its table is its job's."""

    name: str
    """Of letters, digits, dots, underscores and dashes. Its checkpoint is kept under this name."""
    job: str
    """ingest, materialize, aggregate, audit, replay, or the name of a module of your own that is a job."""
    trigger: str | None = None
    """Instead of the pipeline's."""
    on_failure: OnFailure | None = None
    """Instead of the pipeline's."""

    def check(self) -> Iterator[Problem]:
        if not _NAME.fullmatch(self.name):
            yield Problem(
                "name",
                f"{self.name!r} is no name for a directory: use letters, digits, dots, underscores and dashes, at most 100",
            )
        if self.trigger is not None:
            yield from trigger_problems(self.trigger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow(FlowSettings):
    options: Options
    """Of the job's own kind."""

    @property
    def module(self) -> ModuleType:
        return job_module(self.job)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Settings):
    flows: tuple[Flow, ...] = ()
    file: str | None = None
    """What it was read from."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What came from the environment, by value, with how the file calls it: messages say the latter."""

    def state_of(self, flow: str) -> str:
        return os.path.join(self.state, flow)

    def checkpoints_of(self, flow: str) -> str:
        """The directory around the checkpoint."""
        return os.path.join(self.checkpoints, flow) if self.checkpoints else self.state_of(flow)

    def trigger_of(self, flow: Flow) -> dict[str, Any]:
        """As arguments of `DataStreamWriter.trigger`."""
        text = flow.trigger or self.trigger
        return {"availableNow": True} if text == AVAILABLE_NOW else {"processingTime": text}

    def told(self, text: str) -> str:
        """The text without secrets."""
        for value in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(value, self.secrets[value])
        return text


def with_overrides(
    pipeline: Pipeline, *, master: str | None = None, once: bool = False, rebuild: Iterable[str] = ()
) -> Pipeline:
    """What the command line says is stronger than the file. `rebuild`: flows whose tables are built anew."""
    changed = pipeline if master is None else replace(pipeline, master=master)
    changed = _rebuilding(changed, rebuild)
    if not once:
        return changed
    flows = tuple(replace(flow, trigger=None) for flow in changed.flows)
    return replace(changed, trigger=AVAILABLE_NOW, flows=flows)


def _rebuilding(pipeline: Pipeline, names: Iterable[str]) -> Pipeline:
    flows = {flow.name: flow for flow in pipeline.flows}
    for name in names:
        if name not in flows:
            raise OptionsError(
                [Problem("", f"there is no flow {name!r} to rebuild; there are {', '.join(flows)}")]
            )
        flow = flows[name]
        if not hasattr(flow.options, "rebuild"):
            raise OptionsError([Problem("", f"flow {name} cannot be rebuilt: job {flow.job} keeps no state")])
        options: Any = flow.options
        flows[name] = replace(flow, options=replace(options, rebuild=True))
    return replace(pipeline, flows=tuple(flows.values()))


def trigger_problems(text: str) -> Iterator[Problem]:
    if text != AVAILABLE_NOW and not _INTERVAL.fullmatch(text):
        yield Problem(
            "trigger", f'must be an interval such as "1 second", or "{AVAILABLE_NOW}", not {text!r}'
        )


def with_paths(options: T, base: str) -> T:
    """Relative paths count from the directory of the file, wherever the command was called."""
    changed: dict[str, Any] = {}
    hints = typing.get_type_hints(type(options), include_extras=True)
    for each in fields(options):
        value = getattr(options, each.name)
        if not _is_path(hints[each.name]):
            continue
        if isinstance(value, str):
            changed[each.name] = _from(base, value)
        elif isinstance(value, tuple):
            changed[each.name] = tuple(_from(base, path) for path in value)
    return replace(options, **changed) if changed else options


def _from(base: str, text: str) -> str:
    prefix = _SQLITE if text.startswith(_SQLITE) else ""
    path = text.removeprefix(prefix)
    return (
        text if _URL.match(path) else prefix + os.path.normpath(os.path.join(base, os.path.expanduser(path)))
    )


def _is_path(hint: Any) -> bool:
    return IS_PATH in getattr(hint, "__metadata__", ()) or any(
        _is_path(each) for each in typing.get_args(hint) if each is not hint
    )

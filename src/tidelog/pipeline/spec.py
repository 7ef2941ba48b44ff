"""What a pipeline is: settings that all flows share, and the flows. From a TOML file, or the same values made in Python.

    [pipeline]                            Pipeline(
    brokers = "127.0.0.1:9092"                brokers="127.0.0.1:9092",
    [[flow]]                                  flows=(
    name = "orders"                               flow("orders", "ingest", topics="orders", table="tables/orders"),
    job = "ingest"                            ),
    topics = ["orders"]                   )
    table = "tables/orders"

Reading finds every problem at once and the line it is on. Starts nothing and asks no broker.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, NamedTuple

from tidelog.errors import TidelogError
from tidelog.pipeline.checks import between_flows
from tidelog.pipeline.job_modules import JobError, job_module
from tidelog.pipeline.lines import Path, key_lines, line_of
from tidelog.pipeline.options import Options, OptionsError, Problem, read_options
from tidelog.pipeline.substitution import substitute
from tidelog.pipeline.values import Flow, FlowSettings, Pipeline, Settings, with_paths

_AT_LINE: Final = re.compile(r" \(at line (\d+), column \d+\)$")


class SpecProblem(NamedTuple):
    line: int
    why: str


class SpecError(TidelogError):
    """A specification that cannot work: every reason, with its line."""

    def __init__(self, file: str, problems: Iterable[SpecProblem]) -> None:
        self.problems = tuple(sorted(set(problems)))
        super().__init__(
            "\n".join(f"{file}:{line}: {why}" if line else f"{file}: {why}" for line, why in self.problems)
        )


def flow(name: str, job: str, /, **options: Any) -> Flow:
    """A flow made in Python: `trigger` and `on_failure` are the flow's, all else is its job's. OptionsError says what is wrong."""
    found, problems = _flow({"name": name, "job": job, **options}, os.getcwd())
    if found is None:
        raise OptionsError(Problem(problem.key, f"flow {name}: {problem.why}") for problem in problems)
    return found


def load(path: str, environ: Mapping[str, str] | None = None) -> Pipeline:
    """SpecError lists what is wrong with the file; OSError, why it cannot be read."""
    with open(path, "rb") as file:
        data = file.read()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SpecError(path, [SpecProblem(line, "is no UTF-8, which TOML is written in")]) from None
    return parse(text, file=path, environ=os.environ if environ is None else environ)


def parse(text: str, *, file: str, environ: Mapping[str, str]) -> Pipeline:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT_LINE.search(str(error))
        line = int(at[1]) if at else text.count("\n") + 1
        raise SpecError(file, [SpecProblem(line, f"is no TOML: {_AT_LINE.sub('', str(error))}")]) from None
    lines = key_lines(text)
    document, secrets, missing = substitute(document, environ)
    problems = [SpecProblem(line_of(lines, path), why) for path, why in missing]

    def add(at: Path, found: Iterable[Problem], where: str = "") -> None:
        for key, why in found:
            said = ": ".join(part for part in (where, key, why) if part)
            for value, name in secrets.items():
                said = said.replace(value, name)
            problems.append(SpecProblem(_line(lines, at, key), said))

    for key in document:
        if key not in ("pipeline", "flow"):
            close = difflib.get_close_matches(key, ("pipeline", "flow"), 1)
            advice = f"did you mean {close[0]}?" if close else "there are [pipeline] and [[flow]]"
            problems.append(SpecProblem(line_of(lines, (key,)), f"{key}: there is no such table: {advice}"))

    base = os.path.dirname(os.path.abspath(file))
    settings: Settings | None = None
    try:
        settings = _settings(document.get("pipeline", {}), base)
    except OptionsError as error:
        add(("pipeline",), error.problems, "pipeline")

    tables = document.get("flow", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        problems.append(
            SpecProblem(line_of(lines, ("flow",)), "flows are written as [[flow]], with two brackets")
        )
        tables = []
    elif not tables:
        problems.append(SpecProblem(0, "there is no [[flow]]: nothing to do"))
    flows: list[tuple[int, Flow]] = []
    for number, table in enumerate(tables):
        found, wrong = _flow(table, base)
        name = table.get("name")
        add(("flow", number), wrong, f"flow {name}" if isinstance(name, str) else f"flow {number + 1}")
        if found is not None:
            flows.append((number, found))
    state = settings.state if settings is not None else None
    for position, problem in between_flows([each for _, each in flows], state):
        add(("flow", flows[position][0]), [problem], f"flow {flows[position][1].name}")
    if problems or settings is None:
        raise SpecError(file, problems)
    shared = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return Pipeline(**shared, flows=tuple(each for _, each in flows), file=file, secrets=secrets)


def checked(pipeline: Pipeline) -> Pipeline:
    """One made in Python, held to the same rules. SpecError lists what is wrong with it."""
    problems = [f"{key}: {why}" for key, why in pipeline.check()]
    for flow in pipeline.flows:
        problems += [f"flow {flow.name}: {key}: {why}" for key, why in flow.check()]
    for position, (key, why) in between_flows(pipeline.flows, pipeline.state):
        problems.append(f"flow {pipeline.flows[position].name}: {key}: {why}")
    if not pipeline.flows:
        problems.append("it has no flows: nothing to do")
    if problems:
        raise SpecError(pipeline.name, (SpecProblem(0, each) for each in problems))
    return pipeline


def _settings(table: Any, base: str) -> Settings:
    if not isinstance(table, Mapping):
        raise OptionsError([Problem("", "is written as [pipeline], with one bracket")])
    return with_paths(read_options(Settings, _dotted_mappings(Settings, table)), base)


def _flow(table: Mapping[str, Any], base: str) -> tuple[Flow | None, list[Problem]]:
    """All problems of a flow: of what it has as a flow, and of its job's options."""
    own_names = {each.name for each in fields(FlowSettings)}
    problems: list[Problem] = []
    own: FlowSettings | None = None
    try:
        own = read_options(FlowSettings, {key: table[key] for key in table if key in own_names})
    except OptionsError as error:
        problems += error.problems
    if not isinstance(table.get("job"), str):
        return None, problems
    try:
        kind = job_module(table["job"]).Options
    except JobError as error:
        return None, [*problems, Problem("job", str(error))]
    rest = {key: table[key] for key in table if key not in own_names}
    try:
        options = with_paths(read_options(kind, _dotted_mappings(kind, rest)), base)
    except OptionsError as error:
        return None, [*problems, *(_with_own_names(each, own_names, kind) for each in error.problems)]
    if own is None or problems:
        return None, problems
    return Flow(**{name: getattr(own, name) for name in own_names}, options=options), []


def _with_own_names(problem: Problem, own_names: set[str], kind: type[Options]) -> Problem:
    """A misspelt `triger` is not the job's: advice knows the names of both."""
    if "there is no such option" not in problem.why:
        return problem
    names = own_names | {each.name for each in fields(kind)}
    close = difflib.get_close_matches(problem.key, names, 1)
    advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(names))}"
    return Problem(problem.key, f"there is no such option: {advice}")


def _dotted_mappings(kind: type[Options], table: Mapping[str, Any]) -> dict[str, Any]:
    """TOML reads `security.protocol = "SSL"` as a table in a table; where a mapping of texts is wanted, it is one name."""
    hints = typing.get_type_hints(kind)
    return {
        key: _flat(value) if isinstance(value, Mapping) and _is_mapping(hints.get(key)) else value
        for key, value in table.items()
    }


def _is_mapping(hint: Any) -> bool:
    choices = [hint, *typing.get_args(hint)]
    return any(typing.get_origin(each) is not None and issubclass(_origin(each), Mapping) for each in choices)


def _origin(hint: Any) -> type:
    origin = typing.get_origin(hint)
    return origin if isinstance(origin, type) else object


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _line(lines: Mapping[Path, int], at: Path, key: str) -> int:
    """Of a key that may be dotted, or have dots in it."""
    parts = key.split(".") if key else []
    candidates = [(*at, *parts[:cut], ".".join(parts[cut:])) for cut in range(len(parts))] + [(*at, *parts)]
    found = [lines[each] for each in candidates if each in lines]
    return max(found) if found else line_of(lines, (*at, *parts))

"""Why a flow failed, in a sentence or two for a person. Spark tells it as a page of Java around a page of Python; what counts is the innermost error. Pure."""

from __future__ import annotations

import re
from typing import Final

LENGTH_MAX: Final = 1500
_LINES_MAX: Final = 8
_TRACEBACK: Final = "Traceback (most recent call last):"
# What follows these says where Spark was, not what happened.
_TAIL: Final = re.compile(r"\n=== Streaming Query ===|\n\nJVM stacktrace:|\nDriver stacktrace:", re.DOTALL)
_SQL_STATE: Final = re.compile(r"[. ]*\s*SQLSTATE: \w{5};?\s*$")
_CONDITION: Final = re.compile(r"^\[[A-Z_]+(?:\.[A-Z_]+)*\] ")
_LOST_TASK: Final = re.compile(r"Job aborted due to stage failure: .*?\(TID \d+\) \([^)]*\): ", re.DOTALL)
_JAVA_CLASS: Final = re.compile(r"^(?:[a-z]\w*\.)+([A-Z]\w*): ")
_PYTHON_CLASS: Final = re.compile(r"^((?:\w+\.)*)(\w+)(?:: |$)")
_STREAM_FAILED: Final = re.compile(r"^Query \[.*?\] terminated with exception: ", re.DOTALL)

_DAMAGED_SPARK: Final = r"java\.lang\.IllegalStateException: Illegal size \d+ of collection"
"""Two queries have begun at the same instant and damaged what Spark keeps for both (`tidelog.spark.session` prevents it). Nothing else says this, whatever stands around it."""

_ADVICE: Final = (
    (
        r"No space left on device|Disk quota exceeded",
        "make room on that disk and start again: the flow goes on where it was",
    ),
    (r"File too large", "the file may not grow (ulimit -f): raise the limit and start again"),
    (
        r"Java heap space|OutOfMemoryError|GC overhead limit",
        "give Spark more memory: spark.driver.memory (local) or spark.executor.memory in [pipeline.spark]",
    ),
    (
        r"SparkContext was shut down|SparkContext has been shutdown|Py4JNetworkError|Connection reset by peer.*py4j",
        "Spark itself has ended; its own account is in spark.log and spark-stderr.log of the state directory",
    ),
    (
        r"Python worker failed to connect back",
        "the machine was too busy to start a Python process within Spark's ten seconds",
    ),
    (_DAMAGED_SPARK, "Spark has damaged its own memory: start again, everything goes on where it was"),
    (
        r"Python worker exited unexpectedly|EOFException",
        "a Python worker died, which the system does when memory runs out (dmesg tells)",
    ),
    (
        r"All masters are unresponsive|Failed to connect to master",
        "is the cluster up, and is its address right?",
    ),
)
_OWN_NAMES: Final = (
    (r"\bset failOnDataLoss to false", "set fail_on_data_loss to false in the flow"),
    (r"\bstartingOffsets\b", "start"),
    (r"\bsubscribe names\b", "topics names"),
    (r"\bsubscribePattern\b", "pattern"),
)
"""How the source calls an option, and how a flow does."""
_ANEW: Final = "use another checkpoint"


def in_words_of_a_flow(text: str, *, flow: str, can_rebuild: bool) -> str:
    """What the source says to somebody who calls it, for somebody who has written a specification."""
    for pattern, own in _OWN_NAMES:
        text = re.sub(pattern, own, text)
    anew = (
        f"run it with --rebuild {flow}"
        if can_rebuild
        else "give the flow another name and another place to write to"
    )
    return text.replace(_ANEW, anew)


def reason(error: BaseException) -> str:
    """One or more lines, the first of which is enough to know what happened."""
    texts = _texts(error)
    said = next((words for words in map(plain_words, texts) if words), type(error).__name__)
    whole = "\n".join(texts)
    for pattern, advice in _ADVICE:
        if re.search(pattern, whole):
            return f"{said}; {advice}"
    return said


def _texts(error: BaseException) -> list[str]:
    """What the error says, and what its causes say, as far as they are known."""
    texts = [_text(error)]
    cause = getattr(error, "cause", None) or getattr(error, "_cause", None)
    while isinstance(cause, BaseException) and len(texts) < 10:
        texts.append(_text(cause))
        cause = getattr(cause, "cause", None) or getattr(cause, "_cause", None)
    return texts


def _text(error: BaseException) -> str:
    text = str(error)
    if type(error).__module__ == "builtins" or not text:
        return f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text


def plain_words(text: str) -> str:
    """What a message of Spark, py4j or Python says at its core."""
    text = _TAIL.split(text, maxsplit=1)[0]
    if _TRACEBACK in text:
        lines = _error_lines(text.rpartition(_TRACEBACK)[2])
    else:
        lines = _java_lines(text)
    return _bounded([_SQL_STATE.sub("", line).rstrip() for line in lines])


def _error_lines(traceback: str) -> list[str]:
    """What stands below the frames of a traceback, which are indented; an error's own further lines are kept."""
    lines = traceback.splitlines()
    start = next((n for n, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    found: list[str] = []
    for line in lines[start:]:
        if line.startswith(("\tat ", "Caused by: ")):
            break
        found.append(line)
    if found:
        found[0] = _without_own_class(found[0])
    return found


def _without_own_class(line: str) -> str:
    """Names of our errors say nothing that their message does not; names of others often do (`KeyError: 'id'`)."""
    match = _PYTHON_CLASS.match(line)
    if match is None or not match[1]:
        return line
    rest = line[match.end() :]
    if match[1].startswith("tidelog.") and rest:
        return rest
    return f"{match[2]}: {rest}" if rest else match[2]


def _java_lines(text: str) -> list[str]:
    text = _STREAM_FAILED.sub("", _CONDITION.sub("", text.strip()))
    text = _LOST_TASK.sub("", text)
    causes = [
        line.removeprefix("Caused by: ") for line in text.splitlines() if line.startswith("Caused by: ")
    ]
    lines = []
    for line in [causes[-1]] if causes else text.splitlines():
        if line.startswith(("\tat ", "'", "+- ", "   +- ")):  # frames, and plans below an analysis error
            break
        lines.append(line)
    if lines:
        lines[0] = _CONDITION.sub("", _JAVA_CLASS.sub(_java_name, lines[0]))
    return lines


def _java_name(match: re.Match[str]) -> str:
    """`java.io.FileNotFoundException: x`: the class says what is wrong with x. Spark's own say nothing."""
    return "" if "spark" in match[0] or match[1] in ("IOException", "RuntimeException") else f"{match[1]}: "


def _bounded(lines: list[str]) -> str:
    """Of many lines the first ones and the last, which is where an error says what to do."""
    kept = [line for line in lines if line.strip()]
    left_out = 0
    while len(kept) > 2 and (
        len(kept) + bool(left_out) > _LINES_MAX or len("\n".join(kept)) > LENGTH_MAX - 20
    ):
        del kept[-2]
        left_out += 1
    if left_out:
        kept.insert(-1, f"  … and {left_out} more")
    text = "\n".join(kept)
    return text if len(text) <= LENGTH_MAX else text[: LENGTH_MAX - 1] + "…"

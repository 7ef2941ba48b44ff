"""Members of groups as processes of their own: started, killed, stopped, waited for. A kill is a real kill -9.

Owns the processes and ends every one of them by its own pid. What they wrote down is judged in `journal.py`.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.groups.journal import Event, Journal, Life, Story

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
"""For what should take a second or two; a busy machine is no failure."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A client library with an assignor or protocol. Incremental: a rebalance leaves alone what need not move."""

    name: str
    module: str
    assignor: str = "range"
    protocol: str = "classic"
    incremental: bool = False

    def __str__(self) -> str:
        return self.name

    def arguments(self) -> list[str]:
        return ["--protocol", self.protocol, "--assignor", self.assignor]


CONFLUENT_RANGE = Kind("confluent-range", "confluent_member")
CONFLUENT_COOPERATIVE = Kind(
    "confluent-cooperative-sticky", "confluent_member", "cooperative-sticky", incremental=True
)
CONFLUENT_CONSUMER = Kind(
    "confluent-consumer-protocol", "confluent_member", protocol="consumer", incremental=True
)
KAFKA_PYTHON_RANGE = Kind("kafka-python-range", "kafka_python_member")
AIOKAFKA_RANGE = Kind("aiokafka-range", "aiokafka_member")

EVERY_KIND = (
    CONFLUENT_RANGE,
    CONFLUENT_COOPERATIVE,
    CONFLUENT_CONSUMER,
    KAFKA_PYTHON_RANGE,
    AIOKAFKA_RANGE,
)
EVERY_LIBRARY = (CONFLUENT_RANGE, KAFKA_PYTHON_RANGE, AIOKAFKA_RANGE)


class Member:
    """One process. Its output beside the journal is kept for a failed test to show."""

    def __init__(self, name: str, kind: Kind, command: Sequence[str], journal: Path) -> None:
        self.name = name
        self.kind = kind
        self.killed_at = math.inf
        self._journal = Journal(journal)
        self._output = journal.with_suffix(".output")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """kill -9. Its ownerships end before the signal, so that nothing which follows can overlap them."""
        if self.is_running:
            self.killed_at = time.monotonic()
            self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM: it commits, closes its consumer and ends."""
        self._process.terminate()
        assert self.ended_with(PATIENCE_SECONDS) == 0, self.complain("did not stop in order")

    def ended_with(self, seconds: float) -> int | None:
        """The exit status, or None when it is still running after that time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def events(self, *kinds: str) -> list[Event]:
        """What it has written so far, of these kinds or all of it."""
        return [event for event in self._journal.refresh() if not kinds or event.kind in kinds]

    def life(self) -> Life:
        return Life(self.name, list(self._journal.refresh()), self.killed_at)

    def complain(self, what: str) -> str:
        said = "\n".join(self._output.read_text(errors="replace").splitlines()[-15:])
        last = "\n".join(str(event) for event in self.events()[-5:])
        return f"{self.name} ({self.kind}) {what}; it said:\n{said}\nand last wrote:\n{last}"


class Crew:
    """All members that a test starts for one group and topic."""

    def __init__(self, folder: Path, bootstrap: str, group: str, topic: str, partitions: int) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.partitions = partitions
        self.members: list[Member] = []
        self._folder = folder

    def start(self, kind: Kind, name: str | None = None, **options: object) -> Member:
        """`options` are those of `members/options.py`."""
        name = name or f"m{len(self.members)}"
        journal = self._folder / f"{self.group}-{len(self.members)}-{name}.journal"
        command = [sys.executable, "-m", f"tests.groups.members.{kind.module}"]
        command += ["--bootstrap", self.bootstrap, "--group", self.group, "--topic", self.topic]
        command += ["--output", str(journal), *kind.arguments()]
        for option, value in options.items():
            command += [f"--{option.replace('_', '-')}", str(value)]
        member = Member(name, kind, command, journal)
        self.members.append(member)
        return member

    def story(self) -> Story:
        return Story(member.life() for member in self.members)

    def end(self) -> None:
        for member in self.members:
            member.kill()

    # ---- waiting

    def wait(
        self, condition: Callable[[], bool], what: str, *, among: Iterable[Member] = (), seconds: float = 0
    ) -> None:
        """Until it is true. A member of `among` that ends meanwhile is a failure."""
        deadline = time.monotonic() + (seconds or PATIENCE_SECONDS)
        while not condition():
            for member in among:
                assert member.is_running, member.complain(f"ended while the test waited until {what}")
            assert time.monotonic() < deadline, f"waited in vain until {what}; {self._state()}"
            time.sleep(0.1)

    def wait_until_settled(self, *members: Member) -> None:
        """Until just these members own all partitions, in shares that differ by one at most, and each was read from."""

        def settled() -> bool:
            story = self.story()
            shares = story.shares()
            owned = [partition for share in shares.values() for partition in share]
            if sorted(owned) != list(range(self.partitions)) or not even(shares):
                return False
            return all(ownership.records for ownership in story.ownerships if not ownership.end)

        def even(shares: dict[str, set[int]]) -> bool:
            sizes = [len(share) for share in shares.values()]
            return shares.keys() == {member.name for member in members} and max(sizes) - min(sizes) <= 1

        self.wait(settled, f"{len(members)} members share all partitions", among=members)

    def wait_until_delivered(self, values: set[str], *members: Member) -> None:
        self.wait(lambda: values <= self.story().delivered(), "every record is delivered", among=members)

    def _state(self) -> str:
        story = self.story()
        lines = [f"shares {story.shares()}, {len(story.delivered())} records delivered"]
        lines += [
            member.complain("is running" if member.is_running else "has ended") for member in self.members
        ]
        return "\n".join(lines)

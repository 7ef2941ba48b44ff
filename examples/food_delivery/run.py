"""`make run`: three brokers, generator and pipeline as processes, and what the pipeline finds out, live, until Ctrl-C.

Starts them in that order and stops them in the reverse one. One broker of several may die: it is started again, and nothing is lost. A pipeline that dies, or what looks after the
brokers, ends the run, with its last lines; the results of the others stay.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from examples.food_delivery.children import Child
from examples.food_delivery.generate import RATE
from examples.food_delivery.place import HOST, Place, PlaceError, require_free
from examples.food_delivery.results import Results
from examples.food_delivery.showing import Screen, say
from examples.food_delivery.topics import create_topics
from tidelog.client.errors import ClientError
from tidelog.errors import TidelogError

REPOSITORY: Final = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX: Final = 60.0
BROKERS: Final = 3
# How each is asked to end, and how long it may take.
STOPPING: Final = {
    "warm-up": (signal.SIGTERM, 2.0),
    "generator": (signal.SIGTERM, 5.0),
    "pipeline": (signal.SIGINT, 45.0),  # it gives running batches 10 s, and Spark 30 s
    "broker": (signal.SIGTERM, 30.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    place: Place
    port: int
    brokers: int
    rate: float
    fresh: bool

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self.port + number}" for number in range(self.brokers))


class ChildDiedError(TidelogError):
    def __init__(self, child: Child) -> None:
        last = "\n".join(f"  | {line}" for line in child.last_lines())
        super().__init__(
            f"the {child.name} has ended by itself, with exit code {child.exit_code}; its last lines:\n{last}\n"
            f"all of them are in {child.log}"
        )


class Run:
    """The processes of one run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._children: list[Child] = []

    async def start(self) -> None:
        plan, place = self._plan, self._plan.place
        if not place.state.exists():
            self._start("warm-up", "examples.food_delivery.warm")
        several = ("--brokers", str(plan.brokers)) if plan.brokers > 1 else ()
        broker = self._start(
            "broker",
            *("tidelog.cli.main", "start", "--host", HOST, "--port", str(plan.port)),
            *("--data-dir", str(place.broker), *several),
        )
        await self._made_topics(broker)
        say(f"{'brokers' if several else 'broker'} on {plan.bootstrap}, data in {place.broker}")
        if several:
            say(f"each is a process of its own, to be killed if you like: {broker.log} says which is which")
        self._start(
            "pipeline",
            *("tidelog.cli.main", "pipeline", "run", place.specification.name, "--brokers", plan.bootstrap),
            directory=place.directory,
        )
        self._start(
            "generator",
            *("examples.food_delivery.generate", "--brokers", plan.bootstrap, "--rate", str(plan.rate)),
            *("--seed", str(int(time.time()))),
        )
        say(f"generator: {plan.rate:g} orders a second; pipeline: starting Spark, {place.specification}")

    def _start(self, name: str, module: str, *arguments: str, directory: Path | None = None) -> Child:
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
        child = Child(
            name,
            (sys.executable, "-m", module, *arguments),
            self._plan.place.logs / f"{name}.log",
            {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            directory=directory,
        )
        self._children.append(child)
        return child

    async def _made_topics(self, broker: Child) -> None:
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            if broker.exit_code is not None:
                raise ChildDiedError(broker)
            try:
                await asyncio.wait_for(
                    create_topics(self._plan.bootstrap, count=self._plan.brokers), READY_SECONDS_MAX
                )
                return
            except (ClientError, TimeoutError) as error:
                if time.monotonic() >= deadline:
                    raise PlaceError(
                        f"the broker was not ready within {READY_SECONDS_MAX:.0f} s: {error}; see {broker.log}"
                    ) from error
                await asyncio.sleep(0.1)

    def look(self) -> list[str]:
        """What is wrong but can be lived with. ChildDiedError if it cannot."""
        troubles = []
        for child in self._children:
            if child.exit_code is None or (child.name == "warm-up" and child.exit_code == 0):
                continue
            if child.name in ("broker", "pipeline"):
                raise ChildDiedError(child)
            troubles.append(str(ChildDiedError(child)))
        return troubles

    async def stop(self) -> None:
        """One after the other, so that each finds what it needs to end well: no more orders, then no more pipeline, then no broker."""
        began_at = time.monotonic()
        for name in STOPPING:
            for child in (each for each in self._children if each.name == name):
                how, patience_seconds = STOPPING[name]
                if not await child.stop(how, patience_seconds):
                    say(
                        f"the {name} did not end within {patience_seconds:.0f} s and was killed; see {child.log}"
                    )
        say(f"stopped in {time.monotonic() - began_at:.1f} s")

    def kill(self) -> None:
        for child in self._children:
            child.kill()


async def run(plan: Plan) -> int:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    processes = Run(plan)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, stop.set)
    exit_code = 0
    try:
        starting = asyncio.create_task(processes.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await _show(plan, processes, stop)
        else:
            starting.cancel()
            await asyncio.wait({starting})
        stopping.cancel()
    except TidelogError as error:
        say(str(error))
        exit_code = 1
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, processes.kill)  # asked twice: at once
        say("stopping …")
        await processes.stop()
    _say_where(plan)
    return exit_code


async def _show(plan: Plan, processes: Run, stop: asyncio.Event) -> None:
    results = Results(plan.place, plan.bootstrap)
    with Screen(f"Tidelog: food delivery on {plan.bootstrap}") as screen:
        try:
            while not stop.is_set():
                troubles = processes.look()
                reading = asyncio.create_task(results.read())
                waiting = asyncio.create_task(stop.wait())
                await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not reading.done():
                    reading.cancel()
                    await asyncio.wait({reading})
                    break
                screen.show(reading.result(), troubles)
                try:
                    await asyncio.wait_for(stop.wait(), screen.pause_seconds)
                except TimeoutError:
                    continue
        finally:
            await results.close()


def _say_where(plan: Plan) -> None:
    place = plan.place
    say(f"log segments    {place.broker}")
    say(f"tables (Delta)  {place.tables}")
    say(f"state (SQLite)  {place.database}")
    say(f"output          {place.logs}")
    say("make run goes on from there; make run FRESH=1 begins anew")


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make run", description=__doc__)
    parser.add_argument("--port", type=int, default=9092, help="of the first broker (default %(default)s)")
    parser.add_argument("--brokers", type=int, default=BROKERS, help="how many (default %(default)s)")
    parser.add_argument("--rate", type=float, default=RATE, help="orders a second (default %(default)g)")
    parser.add_argument("--directory", type=Path, default=Path("tidelog-run"), help="default ./%(default)s")
    parser.add_argument("--fresh", action="store_true", help="remove what earlier runs left, and begin anew")
    arguments = parser.parse_args(given)
    place = Place(arguments.directory)
    plan = Plan(
        place=place,
        port=arguments.port,
        brokers=arguments.brokers,
        rate=arguments.rate,
        fresh=arguments.fresh,
    )
    try:
        for number in range(plan.brokers):
            require_free(plan.port + number)
        with place.taken(fresh=plan.fresh):
            place.require_brokers(plan.brokers)
            place.write_specification()
            return asyncio.run(run(plan))
    except TidelogError as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())

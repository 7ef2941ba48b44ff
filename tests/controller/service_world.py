"""A quorum in memory that commits when it is told to, and the controllers on top of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.controller.world import CLUSTER_ID, TinyValidator, registration
from tidelog.controller.controller import Controller
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import MetadataImage
from tidelog.controller.metadata_log import EncodedBatch, replay_log
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.controller.service import ControllerService
from tidelog.controller.service_ports import ControllerTimings, NotLeaderError
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse


class FakeQuorum:
    """One log that all controllers share: what a new leader finds of an old one's uncommitted tail is the test's choice."""

    def __init__(self) -> None:
        self.log: list[EncodedBatch] = []
        self.epoch = 0
        self.committed = 0

    @property
    def end_offset(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    def append(self, batches: Sequence[EncodedBatch], *, epoch: int) -> int:
        if epoch != self.epoch:
            raise NotLeaderError("another one leads")
        for batch in batches:
            assert batch.base_offset == self.end_offset
            self.log.append(batch)
        return self.end_offset

    def cut(self, end_offset: int) -> None:
        assert end_offset >= self.committed
        self.log = [batch for batch in self.log if batch.next_offset <= end_offset]

    def replayed(self, end_offset: int | None = None) -> MetadataImage:
        """What any node knows from the log up to there."""
        batches = [batch.data for batch in self.log if end_offset is None or batch.next_offset <= end_offset]
        return replay_log(batches)[0]


class Answers(list[Any]):
    """Takes answers; an error by its code."""

    def __call__(self, outcome: Any) -> None:
        self.append(outcome.code if isinstance(outcome, RequestError) else outcome)


class ServiceWorld:
    """One quorum and one controller that leads it, with a clock that a test moves."""

    def __init__(self, *, timings: ControllerTimings | None = None, seed: int = 0, **settings: Any) -> None:
        self.now = 1000.0
        self.quorum = FakeQuorum()
        self.published: list[tuple[MetadataDelta, MetadataImage]] = []
        self._timings = timings or ControllerTimings(session_timeout_s=2.0, waiting_max=50)
        self._settings = ControllerSettings(**settings)
        self._rng = random.Random(seed)
        self.service = self.new_service()
        self.lead()

    def new_service(self) -> ControllerService:
        return ControllerService(
            self.quorum,
            lambda image: Controller(
                cluster_id=CLUSTER_ID,
                settings=self._settings,
                validator=TinyValidator(),
                rng=self._rng,
                image=image,
            ),
            timings=self._timings,
            wall_ms=lambda: 1_700_000_000_000,
            min_insync_replicas=self._settings.min_insync_replicas,
            on_committed=lambda delta, image: self.published.append((delta, image)),
        )

    def lead(self) -> None:
        self.quorum.epoch += 1
        self.quorum.committed = self.quorum.end_offset
        self.service.lead(self.quorum.epoch, self.quorum.replayed(), self.now)
        self.commit()

    @property
    def image(self) -> MetadataImage:
        return self.service.image

    def commit(self, end_offset: int | None = None) -> None:
        self.quorum.committed = self.quorum.end_offset if end_offset is None else end_offset
        self.service.committed(self.quorum.committed)

    def ask(self, decide: Callable[[Controller], ControllerResult[Any]]) -> Answers:
        answers = Answers()
        self.service.submit(decide, answers)
        return answers

    def do(self, decide: Callable[[Controller], ControllerResult[Any]]) -> Any:
        answers = self.ask(decide)
        self.commit()
        (answer,) = answers
        return answer

    def register(self, broker: int, **options: Any) -> Any:
        answers = Answers()
        self.service.register_broker(registration(broker, **options), self.now, answers)
        self.commit()
        (answer,) = answers
        return answer if isinstance(answer, ErrorCode) else answer.broker_epoch

    def beat(self, broker: int, *, epoch: int | None = None, offset: int | None = None, **wants: Any) -> Any:
        answers = Answers()
        if epoch is None:
            epoch = self.image.brokers[broker].epoch
        request = BrokerHeartbeatRequest(
            broker, epoch, self.image.offset if offset is None else offset, **wants
        )
        self.service.heartbeat(request, self.now, answers)
        self.commit()
        (answer,) = answers
        return answer

    def add_brokers(self, *brokers: int) -> None:
        for broker in brokers:
            self.register(broker, rack=f"r{broker}")
            answer = self.beat(broker)
            assert isinstance(answer, BrokerHeartbeatResponse)
            assert not answer.is_fenced

    def run_until(self, when: float, *, beating: Sequence[int] = (), every: float = 0.25) -> None:
        """Ticks when they are wanted, heartbeats of some brokers in between."""
        next_beat = self.now
        while True:
            tick = self.service.next_tick()
            self.now = max(self.now, min(when, next_beat, tick if tick is not None else when))
            if self.now >= next_beat:
                for broker in beating:
                    self.beat(broker)
                next_beat = self.now + every
            self.service.tick(self.now)
            self.commit()
            if self.now >= when:
                return

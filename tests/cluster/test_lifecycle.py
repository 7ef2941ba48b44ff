"""A broker registers, says that it lives, is let in and asks to be let go: each step waits for the controller's word."""

from __future__ import annotations

from tests.cluster.world import ManualLoop, ManualPeers
from tidelog.cluster.lifecycle import UNANSWERED_MAX, BrokerLifecycle, LifecycleTimings, Phase
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tidelog.wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse


class Broker:
    """`BrokerSelf`, as far as it is told."""

    def __init__(self) -> None:
        self.is_ready = False
        self.heard: list[object] = []

    def registration(self) -> BrokerRegistrationRequest:
        return BrokerRegistrationRequest(broker_id=3)

    def describe(self, heartbeat: BrokerHeartbeatRequest) -> None:
        heartbeat.want_fence = not self.is_ready

    def registered(self, epoch: int) -> None:
        self.heard.append(epoch)

    def let_in(self) -> None:
        self.heard.append("in")

    def refused(self, code: ErrorCode) -> None:
        self.heard.append(code)


class Scene:
    def __init__(self) -> None:
        self.loop, self.peers, self.broker = ManualLoop(), ManualPeers(), Broker()
        self.controller: int | None = 1
        self.lifecycle = BrokerLifecycle(
            3,
            self.broker,
            controller_id=lambda: self.controller,
            peers=self.peers,
            scheduler=self.loop,
            timings=LifecycleTimings(heartbeat_interval_s=0.5, retry_s=0.1),
        )

    def register(self) -> None:
        self.lifecycle.start()
        self.peers.take().answer(BrokerRegistrationResponse(broker_epoch=70))
        self.loop.pass_time(0)

    def let_in(self) -> None:
        self.register()
        self.broker.is_ready = True
        self.peers.take().answer(BrokerHeartbeatResponse(is_fenced=False))


def test_nothing_is_said_before_the_start() -> None:
    scene = Scene()
    scene.lifecycle.soon()
    scene.loop.pass_time(10)
    assert scene.peers.questions == []


def test_it_registers_and_is_let_in() -> None:
    scene = Scene()
    scene.register()
    assert (scene.lifecycle.epoch, scene.lifecycle.phase) == (70, Phase.FENCED)
    first = scene.peers.take()
    assert (first.request.broker_epoch, first.request.want_fence) == (70, True)
    first.answer(BrokerHeartbeatResponse(is_fenced=True))
    scene.broker.is_ready = True
    scene.loop.pass_time(0.1)
    second = scene.peers.take()
    assert not second.request.want_fence
    second.answer(BrokerHeartbeatResponse(is_fenced=False))
    assert scene.broker.heard == [70, "in"]
    assert scene.lifecycle.is_active


def test_heartbeats_follow_the_controller() -> None:
    scene = Scene()
    scene.let_in()
    scene.controller = None
    scene.loop.pass_time(0.6)
    assert scene.peers.questions == []
    scene.controller = 2
    scene.loop.pass_time(0.1)
    assert scene.peers.take().node_id == 2


def test_a_heartbeat_without_an_answer_is_sent_again_soon() -> None:
    scene = Scene()
    scene.let_in()
    scene.loop.pass_time(0.5)
    scene.peers.take().answer(None)
    scene.loop.pass_time(0.1)
    scene.peers.take()


def test_a_lost_connection_is_a_reason_to_speak_soon_but_not_all_the_time() -> None:
    scene = Scene()
    scene.let_in()
    scene.lifecycle.connection_lost()
    scene.loop.pass_time(0.05)
    assert scene.peers.questions == []
    scene.loop.pass_time(0.05)
    scene.peers.take()


def test_the_next_heartbeat_does_not_wait_for_the_answer_to_the_last() -> None:
    """A controller whose disk is slow answers late, and has heard all the same."""
    scene = Scene()
    scene.let_in()
    scene.loop.pass_time(1.0)
    assert len(scene.peers.questions) == 2
    for question in list(scene.peers.questions):
        question.answer(BrokerHeartbeatResponse(is_fenced=False))
    scene.peers.questions.clear()
    scene.loop.pass_time(0.5)
    scene.peers.take()


def test_so_many_heartbeats_are_on_their_way_and_no_more() -> None:
    scene = Scene()
    scene.let_in()
    scene.loop.pass_time(30)
    assert len(scene.peers.questions) == UNANSWERED_MAX
    scene.peers.questions[0].answer(None)  # the connection was given up
    scene.loop.pass_time(0.1)
    assert len(scene.peers.questions) == UNANSWERED_MAX + 1


def test_a_new_controller_is_spoken_to_at_once_whatever_the_old_one_was_asked() -> None:
    """The old one may be paused: its answer would come in a second, or never."""
    scene = Scene()
    scene.let_in()
    scene.loop.pass_time(0.5)
    old = scene.peers.take()
    scene.controller = 2
    scene.lifecycle.soon()
    scene.loop.pass_time(0)
    assert scene.peers.take().node_id == 2
    old.answer(BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    assert scene.lifecycle.is_active


def test_one_that_was_fenced_is_let_in_again() -> None:
    scene = Scene()
    scene.let_in()
    scene.loop.pass_time(0.5)
    scene.peers.take().answer(BrokerHeartbeatResponse(is_fenced=True))
    assert not scene.lifecycle.is_active
    scene.loop.pass_time(0.1)
    scene.peers.take().answer(BrokerHeartbeatResponse(is_fenced=False))
    assert scene.broker.heard == [70, "in", "in"]


def test_a_stale_epoch_makes_it_register_anew() -> None:
    scene = Scene()
    scene.let_in()
    scene.loop.pass_time(0.5)
    scene.peers.take().answer(BrokerHeartbeatResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    scene.loop.pass_time(0.1)
    question = scene.peers.take()
    assert isinstance(question.request, BrokerRegistrationRequest)
    question.answer(BrokerRegistrationResponse(broker_epoch=90))
    assert scene.lifecycle.epoch == 90


def test_a_registration_that_time_does_not_mend_is_told() -> None:
    scene = Scene()
    scene.lifecycle.start()
    scene.peers.take().answer(BrokerRegistrationResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID))
    scene.loop.pass_time(10)
    assert scene.broker.heard == [ErrorCode.INCONSISTENT_CLUSTER_ID]
    assert scene.peers.questions == []


def test_it_stops_when_the_controller_lets_it_go() -> None:
    scene = Scene()
    scene.let_in()
    stopped: list[float] = []
    scene.lifecycle.stop(lambda: stopped.append(scene.loop.now))
    scene.loop.pass_time(0)
    first = scene.peers.take()
    assert first.request.want_shut_down
    first.answer(BrokerHeartbeatResponse())
    assert stopped == []
    scene.loop.pass_time(0.1)
    scene.peers.take().answer(BrokerHeartbeatResponse(should_shut_down=True))
    assert stopped == [0.1]


def test_it_stops_without_a_controller_after_a_while() -> None:
    """The last one of a cluster that is stopped as a whole has nobody to ask."""
    scene = Scene()
    scene.let_in()
    scene.controller = None
    stopped: list[float] = []
    scene.lifecycle.stop(lambda: stopped.append(scene.loop.now))
    scene.loop.pass_time(2.9)
    assert stopped == []
    scene.loop.pass_time(0.2)
    assert stopped == [3.0]

"""Fetch sessions from the client's side, against the broker's own: what is asked for is what the session holds, whatever is lost."""

from __future__ import annotations

from random import Random

from tidelog.client.consumer.fetch_session import NO_SESSION, Asked, FetchSession
from tidelog.client.metadata import TopicPartition
from tidelog.wire.error_codes import ErrorCode

ID = b"\1" * 16


class Broker:
    """What a broker remembers of one session."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = 0
        self.partitions: dict[TopicPartition, Asked] = {}
        self._made = 0

    def fetch(self, session: FetchSession, wanted: dict[TopicPartition, Asked]) -> tuple[int, int]:
        """(error code, session id), as the broker answers."""
        asked = session.request(wanted)
        if asked.epoch == 0:
            self._made += 1
            self.session_id, self.epoch, self.partitions = self._made, 1, dict(asked.partitions)
            return 0, self.session_id
        if asked.session_id != self.session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0
        if asked.epoch != self.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0
        self.epoch += 1
        for tp in asked.forgotten:
            del self.partitions[tp]
        self.partitions.update(asked.partitions)
        return 0, self.session_id


def test_the_broker_serves_what_is_wanted_whatever_is_lost() -> None:
    for seed in range(200):
        chance, broker, session = Random(seed), Broker(), FetchSession()
        tps = [TopicPartition("orders", number) for number in range(4)]
        for _ in range(40):
            wanted = {tp: Asked(ID, chance.randrange(3), 0, 100) for tp in tps if chance.random() < 0.6}
            if chance.random() < 0.1:
                broker.session_id = 999  # it has forgotten us
            code, session_id = broker.fetch(session, wanted)
            if chance.random() < 0.1:
                session.unanswered()
                continue
            session.answered(code, session_id)
            if code == 0:
                assert broker.partitions == wanted


def test_only_what_has_changed_is_sent() -> None:
    session = FetchSession()
    a, b = TopicPartition("orders", 0), TopicPartition("orders", 1)
    session.request({a: Asked(ID, 0, 0, 100), b: Asked(ID, 0, 0, 100)})
    session.answered(0, 77)
    second = session.request({a: Asked(ID, 5, 0, 100), b: Asked(ID, 0, 0, 100)})
    assert (second.session_id, second.epoch, list(second.partitions), second.forgotten) == (77, 1, [a], {})
    session.answered(0, 77)
    third = session.request({a: Asked(ID, 5, 0, 100)})
    assert (third.epoch, third.partitions, third.forgotten) == (2, {}, {b: ID})


def test_a_topic_that_was_made_again_is_forgotten_and_asked_for_anew() -> None:
    session, a = FetchSession(), TopicPartition("orders", 0)
    session.request({a: Asked(ID, 5, 0, 100)})
    session.answered(0, 77)
    again = session.request({a: Asked(b"\2" * 16, 0, 0, 100)})
    assert again.forgotten == {a: ID} and again.partitions[a].topic_id == b"\2" * 16


def test_a_broker_without_sessions_is_asked_for_everything() -> None:
    session, a = FetchSession(), TopicPartition("orders", 0)
    for _ in range(3):
        asked = session.request({a: Asked(ID, 0, 0, 100)})
        assert (asked.session_id, asked.epoch, list(asked.partitions)) == (NO_SESSION, 0, [a])
        session.answered(0, NO_SESSION)

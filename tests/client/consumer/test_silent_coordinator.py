"""A coordinator that does not answer, while others know of another one: a member does not wait for it, however long its request may take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.client.consumer.test_membership import FOLLOWS, Driven, beats, got
from tests.client.group_script import GroupScript, play
from tidelog.client.groups import Groups
from tidelog.client.metadata import TopicPartition
from tidelog.wire.api import ApiKey
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.find_coordinator import FindCoordinatorResponse
from tidelog.wire.messages.leave_group import LeaveGroupResponse
from tidelog.wire.messages.metadata import MetadataResponse, MetadataResponseBroker

T1 = TopicPartition("t", 1)


class TwoNodes(GroupScript):
    """Of which both are served by the one that there is."""

    def _metadata(self, body: Any) -> MetadataResponse:
        answer = super()._metadata(body)
        answer.brokers.append(MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port))
        return answer

    def coordinated_by(self, *nodes: int) -> None:
        """One answer after the other, the last one for ever."""

        def answer(node: int) -> FindCoordinatorResponse:
            found = self.coordinator()
            found.coordinators[0].node_id = node
            return found

        self.say(ApiKey.FIND_COORDINATOR, *(lambda _, node=node: answer(node) for node in nodes))


@pytest.mark.parametrize("key", [ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT])
def test_who_coordinates_is_asked_when_there_is_no_answer(key: ApiKey) -> None:
    script = TwoNodes()
    answers: dict[ApiKey, list[Any]] = {
        ApiKey.JOIN_GROUP: [FOLLOWS],
        ApiKey.SYNC_GROUP: [got(T1)],
        ApiKey.HEARTBEAT: beats(ErrorCode.NONE),
        ApiKey.LEAVE_GROUP: [LeaveGroupResponse()],
    }
    for each, said in answers.items():
        script.say(each, *([None] if each is key else []), *said)
    script.coordinated_by(0, 0, 0, 1)

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        driven.membership._settings = replace(driven.membership._settings, request_timeout_ms=50)
        while not driven.member.is_settled or len(script.asked[ApiKey.HEARTBEAT]) < 2:
            await driven.poll()
        assert driven.member.owned == {T1}
        await driven.membership.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.FIND_COORDINATOR]) >= 4


def test_a_coordinator_that_takes_its_time_is_waited_for() -> None:
    script = TwoNodes()
    script.say(ApiKey.JOIN_GROUP, None)
    script.coordinated_by(0)

    async def scenario(groups: Groups) -> None:
        driven = Driven(groups)
        driven.membership._settings = replace(driven.membership._settings, request_timeout_ms=20)
        while len(script.asked[ApiKey.FIND_COORDINATOR]) < 4:
            await driven.poll()
        await driven.membership.leave()

    play(script, scenario)
    assert len(script.asked[ApiKey.JOIN_GROUP]) == 1

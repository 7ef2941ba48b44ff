"""Elections that nobody's coming or going caused: ElectLeaders, the return to preferred leaders, unclean ones that became allowed.

Owns who is answered what, and how much is done at once (D9). The choice itself is `elections`'.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidelog.controller.elections import Election, leaders_now, partition_change, rules_for
from tidelog.controller.image import MetadataImage, PartitionImage, TopicImage
from tidelog.controller.metadata_records import NO_LEADER
from tidelog.controller.metadata_serde import MetadataRecord
from tidelog.controller.result import ControllerResult, ControllerSettings
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode
from tidelog.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED = 0
_UNCLEAN = 1
_ELECTIONS = {_PREFERRED: Election.PREFERRED, _UNCLEAN: Election.UNCLEAN}


class ElectLeaders:
    """One request against one image."""

    def __init__(self, image: MetadataImage, settings: ControllerSettings) -> None:
        self._image = image
        self._settings = settings
        self._may_lead = leaders_now(image)
        self._records: list[MetadataRecord] = []
        self._elected: set[tuple[str, int]] = set()

    def elect(self, request: ElectLeadersRequest) -> ControllerResult[ElectLeadersResponse]:
        """Every partition when none is named; then those that need no election are left out of the answer."""
        election = _ELECTIONS.get(request.election_type)
        if election is None:
            raise RequestError(
                ErrorCode.INVALID_REQUEST,
                f"{request.election_type} is no election: use 0 (preferred) or 1 (unclean)",
            )
        response = ElectLeadersResponse()
        if request.topic_partitions is None:
            for topic in self._image.topics_by_name.values():
                results = [self._result(topic.name, index, election) for index in topic.partitions]
                needed = [result for result in results if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
                response.replica_election_results.append(ReplicaElectionResult(topic.name, needed))
        else:
            for asked in request.topic_partitions:
                results = [self._result(asked.topic, index, election) for index in asked.partitions]
                response.replica_election_results.append(ReplicaElectionResult(asked.topic, results))
        if len(self._records) > self._settings.records_per_request_max:
            raise RequestError(
                ErrorCode.POLICY_VIOLATION,
                f"the request needs {len(self._records)} elections at once, at most"
                f" {self._settings.records_per_request_max} are allowed: name fewer partitions",
            )
        return ControllerResult(response, self._records)

    def _result(self, topic: str, index: int, election: Election) -> PartitionResult:
        try:
            self._elect(topic, index, election)
        except RequestError as error:
            return PartitionResult(index, error.code, error.message)
        return PartitionResult(index, ErrorCode.NONE, None)

    def _elect(self, name: str, index: int, election: Election) -> None:
        topic = self._image.topic(name)
        if topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name!r}")
        partition = topic.partitions.get(index)
        if partition is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{index}")
        if (name, index) in self._elected or not _is_needed(partition, election):
            which = "its preferred leader" if election is Election.PREFERRED else "a leader"
            raise RequestError(ErrorCode.ELECTION_NOT_NEEDED, f"{name}-{index} has {which} already")
        rules = rules_for(self._image, name, self._settings, self._may_lead)
        record = partition_change(topic, index, rules, election=election)
        if record is None and election is Election.PREFERRED:
            raise RequestError(
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                f"broker {partition.replicas[0]}, the preferred leader of {name}-{index}, is not in sync or not active",
            )
        if record is None:
            raise RequestError(
                ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
                f"no replica of {name}-{index} is on an active broker",
            )
        self._elected.add((name, index))
        self._records.append(record)


def _is_needed(partition: PartitionImage, election: Election) -> bool:
    if election is Election.PREFERRED:
        return partition.leader != partition.replicas[0]
    return partition.leader == NO_LEADER


def balance_leaders(image: MetadataImage, settings: ControllerSettings) -> ControllerResult[bool]:
    """Gives leaderships back to preferred replicas that are in sync again. The response says whether there are more to give back."""
    records = _some(image, settings, Election.PREFERRED)
    return ControllerResult(len(records) == settings.elections_per_balance_max, records)


def elect_leaderless(image: MetadataImage, settings: ControllerSettings) -> ControllerResult[bool]:
    """Leaders where a changed setting allows an election that was not possible before. The response says whether there are more."""
    records = _some(image, settings, Election.ONLINE)
    return ControllerResult(len(records) == settings.elections_per_balance_max, records)


def _some(image: MetadataImage, settings: ControllerSettings, election: Election) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    may_lead = leaders_now(image)
    for topic, index in _concerned(image, election):
        rules = rules_for(image, topic.name, settings, may_lead)
        record = partition_change(topic, index, rules, election=election)
        if record is not None:
            records.append(record)
        if len(records) == settings.elections_per_balance_max:
            break
    return records


def _concerned(image: MetadataImage, election: Election) -> Iterator[tuple[TopicImage, int]]:
    for topic, index, partition in image.partitions():
        if election is Election.PREFERRED:
            if partition.leader != partition.replicas[0] and partition.replicas[0] in partition.isr:
                yield topic, index
        elif partition.leader == NO_LEADER:
            yield topic, index

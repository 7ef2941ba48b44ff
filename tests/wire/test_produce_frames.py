"""The hand-written form of Produce says the same as the compiled one, for every message and for hostile bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.errors import ProtocolError
from tidelog.wire.api import ApiKey
from tidelog.wire.codec import decode, encode
from tidelog.wire.headers import encode_response
from tidelog.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.wire.node_endpoints import NodeAddress
from tidelog.wire.produce_frames import (
    FIRST_BY_ID,
    FIRST_FLEXIBLE,
    FIRST_WITH_LEADERS,
    FIRST_WITH_LOG_START,
    FIRST_WITH_REASONS,
    Outcome,
    read_produce,
    write_produce_response,
)
from tidelog.wire.types import ZERO_UUID
from tidelog.wire.varint import write_uvarint

VERSIONS = range(3, 14)
INT16 = st.integers(-(1 << 15), (1 << 15) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NAMES = st.text(max_size=200)
IDS = st.binary(min_size=16, max_size=16)


@st.composite
def requests(draw: st.DrawFn) -> ProduceRequest:
    batches = st.builds(
        PartitionProduceData,
        index=INT32,
        records=st.none() | st.binary(max_size=200) | st.just(bytes(20_000)),
    )
    # More topics or partitions than fit into one byte of a compact length, now and then.
    times = draw(st.sampled_from([1, 1, 1, 130]))
    topics = st.builds(
        TopicProduceData,
        name=NAMES,
        topic_id=IDS,
        partition_data=st.lists(batches, max_size=2).map(lambda several: several * times),
    )
    several = draw(st.lists(topics, max_size=2)) * draw(st.sampled_from([1, 1, 1, 130 // times]))
    return ProduceRequest(draw(st.none() | NAMES), draw(INT16), draw(INT32), several)


def as_read(request: ProduceRequest, version: int) -> Any:
    """What `read_produce` should return, from the message itself."""
    topics = []
    for topic in request.topic_data:
        encoded = topic.name.encode()
        if version >= FIRST_BY_ID:
            key, name, topic_id = topic.topic_id, "", topic.topic_id
        elif version >= FIRST_FLEXIBLE:
            key, name, topic_id = write_uvarint(len(encoded) + 1) + encoded, topic.name, ZERO_UUID
        else:
            key, name, topic_id = len(encoded).to_bytes(2, "big") + encoded, topic.name, ZERO_UUID
        batches = [
            (data.index, None if data.records is None else bytes(data.records))
            for data in topic.partition_data
        ]  # type: ignore[arg-type]
        topics.append((key, name, topic_id, batches))
    return request.transactional_id, request.acks, request.timeout_ms, topics


@given(requests(), st.sampled_from(VERSIONS), st.binary(max_size=20))
def test_requests(request: ProduceRequest, version: int, ahead: bytes) -> None:
    view = memoryview(bytearray(ahead + encode(request, version)))
    transactional_id, acks, timeout_ms, topics = read_produce(view, len(ahead), version)
    plain = [
        (
            key,
            name,
            topic_id,
            [(index, None if records is None else bytes(records)) for index, records in batches],
        )
        for key, name, topic_id, batches in topics
    ]
    assert (transactional_id, acks, timeout_ms, plain) == as_read(request, version)


@given(requests(), st.sampled_from(VERSIONS), st.data())
def test_a_cut_request_is_refused(request: ProduceRequest, version: int, data: st.DataObject) -> None:
    encoded = encode(request, version)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ProtocolError):
        read_produce(memoryview(encoded[:cut]), 0, version)


@given(requests(), st.sampled_from(VERSIONS), st.data())
def test_flipped_bytes_are_read_alike_or_refused(
    request: ProduceRequest, version: int, data: st.DataObject
) -> None:
    """Whatever the compiled decoder takes, this one takes as the same, and the other way round."""
    raw = bytearray(encode(request, version))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw += bytes(64)  # the compiled decoder is asked for a whole message, this one ignores what follows
    try:
        _, acks, timeout_ms, topics = read_produce(memoryview(raw), 0, version)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            _decode_prefix(raw, version)
        return
    known = _decode_prefix(raw, version)
    assert (acks, timeout_ms) == (known.acks, known.timeout_ms)
    assert [[batch[0] for batch in topic[3]] for topic in topics] == [
        [data.index for data in topic.partition_data] for topic in known.topic_data
    ]


def _decode_prefix(raw: bytearray, version: int) -> ProduceRequest:
    from tidelog.wire.codec import decoder

    return decoder(ProduceRequest, version)(memoryview(raw), 0)[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_lengths_are_held_against_what_is_there(version: int) -> None:
    """A claimed length costs nothing: no list of a billion is begun."""
    head = b"\0" if version >= FIRST_FLEXIBLE else b"\xff\xff"
    claim = b"\xff\xff\xff\xff\x0f" if version >= FIRST_FLEXIBLE else b"\x7f\xff\xff\xff"
    with pytest.raises(ProtocolError, match="topic_data"):
        read_produce(memoryview(head + bytes(6) + claim + bytes(50)), 0, version)


OUTCOMES = st.builds(
    Outcome,
    INT32,
    st.just(0) | INT16,
    INT64,
    INT64,
    INT64,
    st.none() | NAMES,
    st.lists(st.tuples(INT32, NAMES), max_size=3).map(tuple),
)


@given(
    st.lists(st.tuples(NAMES, IDS, st.lists(OUTCOMES, max_size=3)), max_size=3)
    | st.tuples(NAMES, IDS, st.just([])).map(lambda topic: [topic] * 127),
    st.sampled_from(VERSIONS),
    INT32,
    st.none() | st.tuples(INT32, INT32),
    st.lists(st.builds(NodeAddress, INT32, NAMES, INT32, st.none() | NAMES), max_size=3),
)
def test_answers(
    topics: list[tuple[str, bytes, list[Outcome]]],
    version: int,
    correlation_id: int,
    leader: tuple[int, int] | None,
    endpoints: list[NodeAddress],
) -> None:
    if version < FIRST_WITH_LEADERS:
        leader, endpoints = None, []
    if leader == (-1, -1):
        leader = None  # says nothing
    for _, _, outcomes in topics:
        for outcome in outcomes:
            outcome.current_leader = leader if outcome.error_code else None
            if not outcome.error_code:  # a success has nothing to explain
                outcome.error_message, outcome.record_errors = None, ()
    message = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=name,
                topic_id=topic_id,
                partition_responses=[
                    PartitionProduceResponse(
                        index=outcome.index,
                        error_code=outcome.error_code,
                        base_offset=outcome.base_offset,
                        log_append_time_ms=outcome.log_append_time_ms,
                        log_start_offset=outcome.log_start_offset if version >= FIRST_WITH_LOG_START else -1,
                        record_errors=[
                            BatchIndexAndErrorMessage(index, reason)
                            for index, reason in outcome.record_errors
                        ]
                        if version >= FIRST_WITH_REASONS
                        else [],
                        error_message=outcome.error_message if version >= FIRST_WITH_REASONS else None,
                        current_leader=LeaderIdAndEpoch(*(outcome.current_leader or (-1, -1))),
                    )
                    for outcome in outcomes
                ],
            )
            for name, topic_id, outcomes in topics
        ],
        node_endpoints=[NodeEndpoint(*endpoint) for endpoint in endpoints],
    )
    keyed = [
        (
            as_read(ProduceRequest(topic_data=[TopicProduceData(name, topic_id, [])]), version)[3][0][0],
            outcomes,
        )
        for name, topic_id, outcomes in topics
    ]
    expected = b"".join(
        bytes(part) for part in encode_response(ApiKey.PRODUCE, version, correlation_id, message)
    )  # type: ignore[arg-type]
    assert write_produce_response(version, correlation_id, keyed, endpoints) == expected


def test_the_compiled_decoder_agrees_on_an_ordinary_request() -> None:
    request = ProduceRequest(
        None, -1, 1, [TopicProduceData("orders", ZERO_UUID, [PartitionProduceData(3, b"xyz")])]
    )
    for version in VERSIONS:
        assert decode(ProduceRequest, version, encode(request, version)).acks == -1
        assert read_produce(memoryview(encode(request, version)), 0, version)[1:3] == (-1, 1)

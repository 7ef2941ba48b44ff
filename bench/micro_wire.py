"""What the wire codec costs. `python -m bench.micro wire`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from bench.timing import Timing, cost_seconds
from tidelog.wire.api import ApiKey
from tidelog.wire.codec import decoder
from tidelog.wire.fetch_frames import Fetched, FetchedTopic, write_fetch_response
from tidelog.wire.headers import (
    RequestHeader,
    decode_request_header,
    encode_request,
    encode_response,
    read_request_header,
)
from tidelog.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from tidelog.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidelog.wire.produce_frames import Outcome, read_produce, write_produce_response

TOPIC_ID = bytes(range(16))


class Range:
    """Stands in for a range of a segment file."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def read(self) -> bytes:
        return bytes(self.count)

    def release(self) -> None:
        pass


def request_decode(key: ApiKey, version: int, message: object) -> Callable[[], object]:
    """Header and body, as the broker does it."""
    frame = memoryview(bytearray(encode_request(RequestHeader(key, version, 7, "producer-1"), message)))[4:]
    decode = decoder(type(message), version)

    def run() -> object:
        _, position = decode_request_header(frame, 0)
        return decode(frame, position)

    return run


def produce_request() -> ProduceRequest:
    partition = PartitionProduceData(index=0, records=bytes(1100))
    return ProduceRequest(
        None, -1, 30000, [TopicProduceData(name="orders", topic_id=TOPIC_ID, partition_data=[partition])]
    )


def produce_response() -> ProduceResponse:
    partition = PartitionProduceResponse(index=0, error_code=0, base_offset=123456, log_start_offset=0)
    return ProduceResponse(
        [TopicProduceResponse(name="orders", topic_id=TOPIC_ID, partition_responses=[partition])]
    )


def fetch_request() -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=123456, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic="orders", topic_id=TOPIC_ID, partitions=[partition])
    return FetchRequest(max_wait_ms=500, min_bytes=1, topics=[topic])


def fetch_response() -> FetchResponse:
    partition = PartitionData(
        partition_index=0,
        high_watermark=200000,
        last_stable_offset=200000,
        log_start_offset=0,
        records=Range(1 << 20),
    )
    return FetchResponse(
        responses=[FetchableTopicResponse(topic="orders", topic_id=TOPIC_ID, partitions=[partition])]
    )


def metadata_response(topics: int, partitions: int) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node, f"broker-{node}", 9092) for node in range(3)],
        cluster_id="cluster",
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=f"topic-{topic}",
                topic_id=TOPIC_ID,
                partitions=[
                    MetadataResponsePartition(0, index, 1, 5, [0, 1, 2], [0, 1, 2], [])
                    for index in range(partitions)
                ],
            )
            for topic in range(topics)
        ],
    )


def frames(timed: Callable[[str, Callable[[], object]], Timing]) -> Iterator[Timing]:
    """What the broker uses for the two hot APIs."""
    for version in (7, 13):
        frame = memoryview(
            bytearray(
                encode_request(RequestHeader(ApiKey.PRODUCE, version, 7, "producer-1"), produce_request())
            )
        )[4:]
        if version == 13:
            yield timed("request header, read", partial(read_request_header, frame))
        body = read_request_header(frame)[-1]
        yield timed(f"Produce v{version} frame, read", partial(read_produce, frame, body, version))
        topic = TOPIC_ID if version == 13 else b"\0\x06orders"
        outcomes = [(topic, [Outcome(0, 0, 123456, -1, 0)])]
        yield timed(
            f"Produce v{version} frame, answer", partial(write_produce_response, version, 7, outcomes)
        )
    fetched = [FetchedTopic("orders", TOPIC_ID, [Fetched(0, 0, 200000, 200000, 0, Range(1 << 20))])]
    for version in (11, 17):
        yield timed(f"Fetch v{version} frame, answer", partial(write_fetch_response, version, 7, fetched))


def timings() -> Iterator[Timing]:
    def timed(operation: str, action: Callable[[], object]) -> Timing:
        return Timing(operation, cost_seconds(action))

    yield from frames(timed)
    for version in (9, 13):
        yield timed(
            f"Produce v{version} request, header + decode",
            request_decode(ApiKey.PRODUCE, version, produce_request()),
        )
        answer = produce_response()
        yield timed(f"Produce v{version} response, encode", partial(encode_response, 0, version, 7, answer))
    yield timed("Produce response, construct", produce_response)
    for version in (12, 16):
        yield timed(
            f"Fetch v{version} request, header + decode",
            request_decode(ApiKey.FETCH, version, fetch_request()),
        )
        fetched = fetch_response()
        yield timed(
            f"Fetch v{version} response, encode with a file range",
            partial(encode_response, 1, version, 7, fetched),
        )
    yield timed("Fetch response, construct", fetch_response)
    metadata = metadata_response(10, 10)
    yield timed("Metadata v12 response 10 x 10, encode", lambda: encode_response(3, 12, 7, metadata))
    yield timed("Metadata response 10 x 10, construct", lambda: metadata_response(10, 10))

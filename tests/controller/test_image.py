"""Images and deltas: what records mean, what is listed as changed, and that nothing else moves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.timing import Stopwatch
from tests.controller.world import World, topic
from tidelog.controller.delta import MetadataDelta
from tidelog.controller.image import EMPTY_IMAGE, MetadataImage, PartitionImage, ResourceKey, ResourceType
from tidelog.controller.image_records import image_to_records
from tidelog.controller.metadata_records import (
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    ZkMigrationStateRecord,
)
from tidelog.controller.metadata_serde import decode_record, encode_record
from tidelog.controller.registration_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ControllerEndpoint,
    ControllerFeature,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from tidelog.controller.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)

ID_A, ID_B = b"a" * 16, b"b" * 16


def built(*records: object, base: MetadataImage = EMPTY_IMAGE) -> MetadataImage:
    return MetadataDelta(base).replay_all(records).apply(offset=base.offset + len(records), epoch=1)


def a_partition(index: int = 0, topic_id: bytes = ID_A, **changes: object) -> PartitionRecord:
    record = PartitionRecord(
        index,
        topic_id,
        [1, 2, 3],
        [1, 2],
        leader=1,
        leader_epoch=0,
        partition_epoch=0,
        directories=[b"d" * 16] * 3,
    )
    for name, value in changes.items():
        setattr(record, name, value)
    return record


# ---- any image


_small = st.integers(0, 5)
_ids = st.binary(min_size=16, max_size=16)
_texts = st.text(max_size=8)
_endpoints = st.tuples(_texts, _texts, st.integers(0, 65535), st.integers(0, 3))
_features = st.dictionaries(_texts, st.tuples(_small, _small), max_size=3)


@st.composite
def partition_records(draw: st.DrawFn, topic_id: bytes, index: int) -> PartitionRecord:
    replicas = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True))
    isr = [broker for broker in replicas if draw(st.booleans())]
    elr = [broker for broker in replicas if broker not in isr and draw(st.booleans())]
    return PartitionRecord(
        index,
        topic_id,
        replicas,
        isr,
        draw(st.lists(_small, max_size=2)),
        draw(st.lists(_small, max_size=2)),
        draw(st.sampled_from([-1, *isr])),
        draw(st.integers(0, 1)),
        draw(_small),
        draw(_small),
        [draw(_ids) for _ in replicas],
        elr or None,
        draw(st.lists(_small, max_size=2)) or None,
    )


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    records: list[object] = []
    names = draw(st.lists(st.text("abc._-", min_size=1, max_size=6), max_size=4, unique=True))
    for number, name in enumerate(names):
        topic_id = bytes([number + 1]) * 16
        records.append(TopicRecord(name, topic_id))
        records += [draw(partition_records(topic_id, index)) for index in range(draw(_small))]
    for broker in draw(st.sets(_small, max_size=3)):
        endpoints = draw(st.lists(_endpoints, max_size=2))
        features = draw(_features)
        records.append(
            RegisterBrokerRecord(
                broker,
                draw(st.booleans()),
                draw(_ids),
                draw(st.integers(0, 2**62)),
                [BrokerEndpoint(*endpoint) for endpoint in endpoints],
                [BrokerFeature(name, *levels) for name, levels in features.items()],
                draw(st.none() | _texts),
                draw(st.booleans()),
                draw(st.booleans()),
                draw(st.lists(_ids, max_size=2)),
                draw(st.none() | st.lists(_ids, max_size=2)),
            )
        )
        records.append(
            RegisterControllerRecord(
                broker,
                draw(_ids),
                draw(st.booleans()),
                [ControllerEndpoint(*endpoint) for endpoint in endpoints],
                [ControllerFeature(name, *levels) for name, levels in features.items()],
            )
        )
    configs = st.builds(ConfigRecord, st.sampled_from(list(ResourceType)), _texts, _texts, _texts)
    features_records = st.builds(
        FeatureLevelRecord, st.sampled_from(["metadata.version", "x", "a"]), st.integers(0, 30)
    )
    acls = st.builds(AccessControlEntryRecord, _ids, _small, _texts, _small, _texts, _texts, _small, _small)
    scram = st.builds(
        UserScramCredentialRecord, _texts, _small, st.binary(), st.binary(), st.binary(), _small
    )
    tokens = st.builds(
        DelegationTokenRecord, _texts, _texts, st.lists(_texts, max_size=2), _small, _small, _small, _texts
    )
    entity = st.lists(
        st.builds(EntityData, st.sampled_from(["user", "client-id", "ip"]), st.none() | _texts),
        min_size=1,
        max_size=2,
        unique_by=lambda part: part.entity_type,
    )
    quotas = st.builds(ClientQuotaRecord, entity, _texts, st.floats(0, 1e9), st.just(False))
    records += draw(st.lists(st.one_of(configs, features_records, acls, scram, tokens, quotas), max_size=8))
    records.append(ProducerIdsRecord(1, 1, draw(st.integers(0, 2**62))))
    return built(*records)


@given(images())
@settings(max_examples=60)
def test_an_image_comes_back_from_its_own_records(image: MetadataImage) -> None:
    records = [decode_record(encode_record(record)) for record in image_to_records(image)]
    assert built(*records).same_metadata(image)


@given(images())
@settings(max_examples=20)
def test_replaying_on_an_image_leaves_the_image_as_it_was(image: MetadataImage) -> None:
    before = repr(image)
    delta = MetadataDelta(image)
    for known in image.topics_by_name.values():
        for index in known.partitions:
            delta.replay(PartitionChangeRecord(index, known.topic_id, leader=-1))
        delta.replay(ConfigRecord(ResourceType.TOPIC, known.name, "x", "y"))
        delta.replay(RemoveTopicRecord(known.topic_id))
    after = delta.apply(offset=0, epoch=0)
    assert not after.topics_by_name
    assert not after.topics_by_id
    assert after.partition_count == 0
    assert repr(image) == before


# ---- single records


def test_a_partition_change_raises_the_partition_epoch_and_a_named_leader_the_leader_epoch() -> None:
    image = built(TopicRecord("t", ID_A), a_partition())
    image = built(PartitionChangeRecord(0, ID_A, isr=[1, 2, 3]), base=image)
    partition = image.topics_by_name["t"].partitions[0]
    assert (partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch) == (
        (1, 2, 3),
        1,
        0,
        1,
    )
    image = built(PartitionChangeRecord(0, ID_A, leader=1), base=image)
    partition = image.topics_by_name["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (1, 1, 2)


def test_new_replicas_keep_the_directories_of_those_that_stay() -> None:
    image = built(TopicRecord("t", ID_A), a_partition(directories=[b"1" * 16, b"2" * 16, b"3" * 16]))
    image = built(PartitionChangeRecord(0, ID_A, replicas=[3, 4]), base=image)
    partition = image.partition("t", 0)
    assert partition is not None
    assert partition.directories == (b"3" * 16, bytes(16))
    assert partition.directory_of(3) == b"3" * 16


def test_records_of_before_directories_are_understood() -> None:
    old = decode_record(encode_record(a_partition(directories=[]), version=0))
    partition = built(TopicRecord("t", ID_A), old).topics_by_name["t"].partitions[0]
    assert partition.directories == (bytes(16),) * 3


@pytest.mark.parametrize("name", ["t", ""], ids=["of one topic", "of all"])
def test_the_elr_is_cleared(name: str) -> None:
    image = built(
        TopicRecord("t", ID_A),
        a_partition(0, eligible_leader_replicas=[3]),
        a_partition(1),
        TopicRecord("other", ID_B),
        a_partition(0, ID_B, last_known_elr=[3]),
    )
    delta = MetadataDelta(image)
    delta.replay(ClearElrRecord(name))
    after = delta.apply(offset=10, epoch=1)
    assert after.topics_by_name["t"].partitions[0].elr == ()
    assert after.topics_by_name["t"].partitions[0].partition_epoch == 1
    assert after.topics_by_name["t"].partitions[1].partition_epoch == 0
    assert after.topics_by_name["other"].partitions[0].last_known_elr == ((3,) if name else ())


def test_a_replica_in_sync_and_eligible_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="I23"):
        built(TopicRecord("t", ID_A), a_partition(eligible_leader_replicas=[2]))


def test_removing_a_topic_removes_its_settings() -> None:
    image = built(
        TopicRecord("t", ID_A), a_partition(), ConfigRecord(ResourceType.TOPIC, "t", "retention.ms", "1")
    )
    delta = MetadataDelta(image)
    delta.replay(RemoveTopicRecord(ID_A))
    assert delta.changed_configs == {ResourceKey(ResourceType.TOPIC, "t")}
    after = delta.apply(offset=5, epoch=1)
    assert not after.configs
    assert [gone.name for gone in delta.topics.deleted] == ["t"]


def test_a_topic_deleted_and_created_again_is_another_topic() -> None:
    image = built(TopicRecord("t", ID_A), a_partition())
    delta = MetadataDelta(image)
    delta.replay_all(
        [RemoveTopicRecord(ID_A), TopicRecord("t", ID_B), a_partition(0, ID_B), a_partition(1, ID_B)]
    )
    after = delta.apply(offset=9, epoch=1)
    assert after.topics_by_name["t"].topic_id == ID_B
    assert list(after.topics_by_id) == [ID_B]
    assert after.partition_count == 2
    assert [gone.topic_id for gone in delta.topics.deleted] == [ID_A]
    assert [new.topic_id for new in delta.topics.created] == [ID_B]
    assert list(delta.topics.changed_partitions()) == [ID_B]


def test_a_topic_that_came_and_went_is_in_no_list() -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_all([TopicRecord("t", ID_A), a_partition(), RemoveTopicRecord(ID_A)])
    assert delta.topics.created == []
    assert delta.topics.deleted == []
    assert delta.topics.changed_partitions() == {}
    assert delta.apply(offset=2, epoch=1).same_metadata(EMPTY_IMAGE)


def test_the_delta_lists_what_changed_and_shares_the_rest() -> None:
    image = built(
        TopicRecord("t", ID_A),
        a_partition(0),
        a_partition(1),
        TopicRecord("other", ID_B),
        a_partition(0, ID_B),
    )
    delta = MetadataDelta(image)
    delta.replay(PartitionChangeRecord(1, ID_A, isr=[1]))
    delta.replay(ConfigRecord(ResourceType.BROKER, "", "log.retention.ms", "5"))
    delta.replay(FeatureLevelRecord("x", 2))
    after = delta.apply(offset=9, epoch=1)
    changed = delta.topics.changed_partitions()
    assert {topic_id: list(parts) for topic_id, parts in changed.items()} == {ID_A: [1]}
    assert delta.topics.created == []
    assert delta.changed_features == {"x": 2}
    assert after.topics_by_name["other"] is image.topics_by_name["other"]
    assert after.topics_by_name["t"].partitions[0] is image.topics_by_name["t"].partitions[0]
    assert after.broker_defaults == {"log.retention.ms": "5"}
    assert image.broker_defaults == {}


def test_a_setting_taken_away_leaves_no_empty_holder() -> None:
    image = built(ConfigRecord(ResourceType.TOPIC, "t", "a", "1"))
    assert built(ConfigRecord(ResourceType.TOPIC, "t", "a", None), base=image).configs == {}


def test_a_feature_at_level_zero_is_not_finalized() -> None:
    image = built(FeatureLevelRecord("x", 2))
    assert built(FeatureLevelRecord("x", 0), base=image).features == {}


def test_brokers_are_fenced_unfenced_changed_and_removed() -> None:
    image = built(RegisterBrokerRecord(1, broker_epoch=7, log_dirs=[ID_A]))
    assert not image.brokers[1].active
    image = built(UnfenceBrokerRecord(1, 7), base=image)
    assert image.brokers[1].active
    image = built(FenceBrokerRecord(1, 7), base=image)
    assert not image.brokers[1].active
    change = BrokerRegistrationChangeRecord(
        1, 7, fenced=-1, in_controlled_shutdown=1, log_dirs=[ID_B], cordoned_log_dirs=[ID_B]
    )
    delta = MetadataDelta(image)
    delta.replay(change)
    broker = delta.registrations.changed_brokers[1]
    assert broker is not None
    assert (broker.fenced, broker.in_controlled_shutdown, broker.active) == (False, True, False)
    assert (broker.log_dirs, broker.cordoned_log_dirs) == ((ID_B,), (ID_B,))
    assert built(UnregisterBrokerRecord(1, 7), base=image).brokers == {}


def test_access_rules_and_quotas_come_and_go() -> None:
    image = built(
        AccessControlEntryRecord(ID_A, 2, "t", 3, "User:x", "*", 3, 3),
        UserScramCredentialRecord("u", 1, b"salt", b"stored", b"server", 4096),
        DelegationTokenRecord("User:x", "User:x", [], 1, 2, 3, "token"),
        ClientQuotaRecord(
            [EntityData("user", None), EntityData("client-id", "c")], "producer_byte_rate", 5.0
        ),
    )
    assert "stored" not in repr(image.security.scram)
    assert image.security.quotas == {(("client-id", "c"), ("user", None)): {"producer_byte_rate": 5.0}}
    image = built(
        RemoveAccessControlEntryRecord(ID_A),
        RemoveUserScramCredentialRecord("u", 1),
        RemoveDelegationTokenRecord("token"),
        ClientQuotaRecord(
            [EntityData("client-id", "c"), EntityData("user", None)], "producer_byte_rate", remove=True
        ),
        base=image,
    )
    assert image.security == EMPTY_IMAGE.security


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (PartitionChangeRecord(0, ID_B), "does not exist"),
        (PartitionChangeRecord(7, ID_A), "t-7"),
        (a_partition(0, ID_B), "does not exist"),
        (RemoveTopicRecord(ID_B), "does not exist"),
        (ClearElrRecord("nope"), "nope"),
        (TopicRecord("t", ID_B), "although it exists"),
        (UnregisterBrokerRecord(4, 0), "broker 4"),
        (BrokerRegistrationChangeRecord(1, 6, fenced=1), "epoch 6"),
        (ProducerIdsRecord(1, 7, 500), "given out twice"),
    ],
)
def test_a_record_that_contradicts_the_image_is_refused(record: object, says: str) -> None:
    image = built(
        TopicRecord("t", ID_A),
        a_partition(),
        RegisterBrokerRecord(1, broker_epoch=7),
        ProducerIdsRecord(1, 7, 1000),
    )
    with pytest.raises(ValueError, match=says):
        built(record, base=image)


def test_records_without_meaning_change_nothing_and_markers_are_not_for_the_delta() -> None:
    assert built(NoOpRecord(), ZkMigrationStateRecord(1)).same_metadata(EMPTY_IMAGE)
    with pytest.raises(TypeError, match="transaction markers"):
        built(BeginTransactionRecord())


def test_lookups() -> None:
    image = built(TopicRecord("t", ID_A), a_partition())
    assert image.topic("t") is image.topic_by_id(ID_A)
    assert image.topic("x") is None
    assert image.partition("t", 4) is None
    assert image.partition("x", 0) is None
    assert [(known.name, index) for known, index, _ in image.partitions()] == [("t", 0)]
    assert isinstance(image.partition("t", 0), PartitionImage)


def test_a_topic_of_2000_partitions_among_10000_is_image_work_of_milliseconds() -> None:
    # The best of a few, in seconds of the reference machine: this one may run at half its speed for a while.
    assert min(_seconds_to_replay_2000_partitions() for _ in range(3)) < 0.05 * 4


def _seconds_to_replay_2000_partitions() -> float:
    world = World()
    world.add_broker(0)
    for number in range(8):
        assert world.create(topic(f"filler-{number}", 1000)) == [0]
    result = world.controller.create_topics(_request(2000))
    with Stopwatch() as watch:
        world.controller.replay(result.records, offset=world.next_offset, epoch=1)
    assert world.image.partition_count == 10_000
    return watch.seconds


def _request(partitions: int) -> object:
    from tidelog.wire.messages.create_topics import CreateTopicsRequest

    return CreateTopicsRequest([topic("large", partitions)])

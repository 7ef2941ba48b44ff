"""UpdateFeatures and ControllerRegistration: what a cluster can agree on."""

from __future__ import annotations

import pytest

from tests.controller.world import World, registration
from tidelog.controller.image import ResourceType
from tidelog.controller.metadata_records import ConfigRecord, FeatureLevelRecord
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode as E
from tidelog.wire.messages.controller_registration import (
    ControllerRegistrationRequest,
    Feature,
    Listener,
)
from tidelog.wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

UP, SAFE, UNSAFE = 1, 2, 3
ELR = "eligible.leader.replicas.version"


def update(
    world: World, *updates: tuple[str, int, int], validate_only: bool = False, voters: tuple[int, ...] = ()
) -> E:
    keys = [FeatureUpdateKey(name, level, False, kind) for name, level, kind in updates]
    request = UpdateFeaturesRequest(feature_updates=keys, validate_only=validate_only)
    try:
        response = world.do(world.controller.update_features(request, voters=voters))
    except RequestError as error:
        assert updates[-1][0] in error.message
        return error.code
    assert [(result.feature, result.error_code) for result in response.results] == [
        (name, E.NONE) for name, _, _ in updates
    ]
    return E(response.error_code)


@pytest.mark.parametrize(
    ("name", "level", "kind", "code"),
    [
        ("group.version", 1, UP, E.NONE),
        ("group.version", 1, SAFE, E.NONE),  # where it is already
        ("group.version", 0, SAFE, E.NONE),
        ("group.version", 0, UNSAFE, E.NONE),
        ("group.version", 0, UP, E.INVALID_UPDATE_VERSION),
        ("group.version", 9, UP, E.INVALID_UPDATE_VERSION),
        ("group.version", -1, SAFE, E.INVALID_UPDATE_VERSION),
        ("group.version", 1, 0, E.INVALID_UPDATE_VERSION),
        ("group.version", 1, 9, E.INVALID_UPDATE_VERSION),
        ("metadata.version", 29, SAFE, E.INVALID_UPDATE_VERSION),
        ("metadata.version", 99, UP, E.INVALID_UPDATE_VERSION),
        ("nope.version", 1, UP, E.INVALID_UPDATE_VERSION),
        (ELR, 1, UP, E.NONE),
        (ELR, 0, SAFE, E.INVALID_UPDATE_VERSION),  # only the repaired protocol is spoken here (D6)
    ],
)
def test_what_may_change_and_what_not(name: str, level: int, kind: int, code: E) -> None:
    world = World()
    world.add_broker(1)
    before = world.image
    assert update(world, (name, level, kind), validate_only=True) == code
    assert world.image is before
    assert update(world, (name, level, kind)) == code
    expected = level if code == E.NONE else before.features.get(name, 0)
    assert world.image.features.get(name, 0) == expected


def test_one_refused_feature_refuses_the_request() -> None:
    world = World()
    assert update(world, ("group.version", 0, SAFE), ("nope", 1, UP)) == E.INVALID_UPDATE_VERSION
    assert world.image.features["group.version"] == 1


def test_version_0_of_the_request_says_it_in_another_field() -> None:
    world = World()
    request = UpdateFeaturesRequest(feature_updates=[FeatureUpdateKey("group.version", 0, True)])
    world.do(world.controller.update_features(request))
    assert "group.version" not in world.image.features


def test_every_broker_must_support_it() -> None:
    world = World()
    assert update(world, ("group.version", 0, SAFE)) == E.NONE
    old = registration(1)
    old.features = [feature for feature in old.features if feature.name != "group.version"]
    world.do(world.controller.register_broker(old, next_offset=world.next_offset))
    assert update(world, ("group.version", 1, UP)) == E.INVALID_UPDATE_VERSION


def test_every_controller_of_the_quorum_must_have_registered_and_support_it() -> None:
    world = World()
    update(world, ("group.version", 0, SAFE))
    assert update(world, ("group.version", 1, UP), voters=(1, 2)) == E.INVALID_UPDATE_VERSION

    def register(controller: int, highest: int) -> int:
        request = ControllerRegistrationRequest(
            controller,
            bytes([controller]) * 16,
            False,
            [Listener("CONTROLLER", "here", 9000 + controller, 0)],
            [Feature("group.version", 0, highest)],
        )
        result = world.controller.register_controller(request)
        world.do(result)
        return len(result.records)

    assert [register(1, 1), register(2, 0)] == [1, 1]
    assert update(world, ("group.version", 1, UP), voters=(1, 2)) == E.INVALID_UPDATE_VERSION
    assert [register(2, 1), register(2, 1)] == [1, 0]  # the second says nothing new
    assert update(world, ("group.version", 1, UP), voters=(1, 2)) == E.NONE
    known = world.image.controllers[2]
    assert (known.endpoints[0].port, known.features["group.version"]) == (9002, (0, 1))


def test_with_elr_there_is_one_min_insync_replicas_for_all() -> None:
    world = World(min_insync_replicas=2)
    world.add_broker(1)
    world.write(
        [
            FeatureLevelRecord(ELR, 0),
            ConfigRecord(ResourceType.BROKER, "", "min.insync.replicas", None),
            ConfigRecord(ResourceType.BROKER, "1", "min.insync.replicas", "3"),
        ]
    )
    assert update(world, (ELR, 1, UP)) == E.NONE
    assert world.image.broker_defaults == {"min.insync.replicas": "2"}
    assert not world.image.config(ResourceType.BROKER, "1")

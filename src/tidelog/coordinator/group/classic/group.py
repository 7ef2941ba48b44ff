"""A classic group and its members: who is in it, who leads, who waits for what, and which protocols all of them support.

Owns the bookkeeping, and keeps it in step: how many members wait in a join, how many support each protocol, which instance id
belongs to which member id. None of it costs more for a large group than for a small one, except what is done once per
rebalance. Decides nothing: when to rebalance is told in `rebalance.py`, what a request means in `join.py`, `sync.py` and `liveness.py`.

The log holds of a group what `written` says, and `written` changes only when a record is replayed. Everything else is what goes
on between two records, and is lost with the coordinator: the group then comes back as it was written (I36).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from tidelog.coordinator.group.classic.state import FOLLOWED_BY, State
from tidelog.coordinator.group.records import GroupMetadataValue
from tidelog.coordinator.outcome import Waiter
from tidelog.errors import RequestError
from tidelog.wire.error_codes import ErrorCode

NO_ASSIGNMENT: Final = b""
CONSUMER: Final = "consumer"
"""The protocol type of consumers: its metadata are subscriptions, which the coordinator can read."""


class SupportedProtocol(NamedTuple):
    """A way to assign that a member knows, with what it has to say to the leader. Consumers name an assignor and send a subscription."""

    name: str
    metadata: bytes


@dataclass(slots=True, eq=False)
class ClassicMember:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[SupportedProtocol, ...]
    """In the order of the member's preference, each name once."""
    assignment: bytes = NO_ASSIGNMENT
    join_waiter: Waiter | None = None
    sync_waiter: Waiter | None = None
    is_new: bool = False
    """Has not been told its first generation yet, so it cannot send heartbeats."""

    @property
    def client(self) -> str:
        """For people: "orders-7 (10.0.0.3)"."""
        return f"{self.client_id} ({self.client_host})"

    @property
    def waits(self) -> bool:
        return self.join_waiter is not None or self.sync_waiter is not None

    def metadata(self, protocol: str | None) -> bytes:
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        raise LookupError(f"member {self.member_id} does not support {protocol}")


class ClassicGroup:
    __slots__ = (
        "_supporters",
        "_waiting_joins",
        "generation",
        "group_id",
        "instances",
        "is_followed_up",
        "joined_in_delay",
        "latest_newcomer_ms",
        "leader",
        "members",
        "on_written",
        "pending_joins",
        "pending_syncs",
        "protocol",
        "protocol_type",
        "rebalance_began_ms",
        "state",
        "state_since_ms",
        "subscribed_topics",
        "waits_for_first_members",
        "written",
    )

    def __init__(
        self,
        group_id: str,
        *,
        state: State = State.EMPTY,
        state_since_ms: int | None,
        generation: int = 0,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = state
        self.state_since_ms = state_since_ms
        """By the wall clock; None: the record is of a release that did not store it."""
        self.generation = generation
        self.protocol_type = protocol_type
        self.protocol = protocol
        self.leader: str | None = None
        self.members: dict[str, ClassicMember] = {}
        """In the order in which they came."""
        self.instances: dict[str, str] = {}
        """Member ids of the static members, by instance id."""
        self.pending_joins: set[str] = set()
        """Member ids that were given out, and have not joined yet."""
        self.pending_syncs: set[str] = set()
        """Members of this generation that have not asked for their assignment yet."""
        self.waits_for_first_members = False
        self.joined_in_delay = False
        self.rebalance_began_ms = 0
        self.latest_newcomer_ms = 0
        self.subscribed_topics: frozenset[str] | None = None
        """As `describe.subscribed_topics` last found them in this generation."""
        self.is_followed_up: bool | None = None
        """As `follow_up.is_expected` found out in this generation."""
        self.written: GroupMetadataValue | None = None
        self.on_written: Callable[[GroupMetadataValue], None] | None = None
        """What the record that is being written means for the group, once it is replayed."""
        self._waiting_joins = 0
        self._supporters: Counter[str] = Counter()

    # ---- members

    def add(self, member: ClassicMember, waiter: Waiter | None = None) -> None:
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.instances
            self.instances[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self.members[member.member_id] = member
        self.pending_joins.discard(member.member_id)
        self._count_protocols(member, 1)
        if waiter is not None:
            self.hold_join(member, waiter)

    def remove(self, member: ClassicMember) -> None:
        """Who waits must have been answered before."""
        assert not member.waits
        del self.members[member.member_id]
        self._count_protocols(member, -1)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        self.pending_syncs.discard(member.member_id)

    def replace(self, old: ClassicMember, new: ClassicMember) -> None:
        """Another process takes a static member's place. Whatever the old one waited for must have been answered before."""
        assert not old.waits
        assert old.instance_id is not None
        assert old.instance_id == new.instance_id
        del self.members[old.member_id]
        self._count_protocols(old, -1)
        self.members[new.member_id] = new
        self._count_protocols(new, 1)
        self.instances[old.instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id
        if old.member_id in self.pending_syncs:
            self.pending_syncs.remove(old.member_id)
            self.pending_syncs.add(new.member_id)

    def check_member(self, member_id: str, instance_id: str | None) -> ClassicMember:
        """The member, if it is one; with an instance id, if that is still its own."""
        if instance_id is not None:
            current = self.instances.get(instance_id)
            if current is None:
                raise RequestError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"group {self.group_id} has no member with instance id {instance_id}: join again",
                )
            if current != member_id:
                raise RequestError(
                    ErrorCode.FENCED_INSTANCE_ID,
                    f"instance id {instance_id} of group {self.group_id} belongs to {current} now, not to {member_id}: "
                    "two processes use it, or this one was replaced",
                )
        member = self.members.get(member_id)
        if member is None:
            raise RequestError(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"group {self.group_id} has no member {member_id}: it left or timed out; join again",
            )
        return member

    @property
    def rebalance_timeout_ms(self) -> int:
        """The slowest member's. Looks at all members: once per rebalance."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # ---- who waits

    def hold_join(self, member: ClassicMember, waiter: Waiter) -> Waiter | None:
        """Returns the waiter of an earlier request of the same member, which nobody will answer otherwise."""
        earlier = member.join_waiter
        member.join_waiter = waiter
        if earlier is None:
            self._waiting_joins += 1
        return earlier

    def release_join(self, member: ClassicMember) -> Waiter | None:
        waiter = member.join_waiter
        if waiter is not None:
            member.join_waiter = None
            self._waiting_joins -= 1
        return waiter

    @property
    def waiting_joins(self) -> int:
        return self._waiting_joins

    @property
    def all_joined(self) -> bool:
        return self._waiting_joins == len(self.members) and not self.pending_joins

    def elect_joined_leader(self) -> bool:
        """The leader stays if it has joined again; else the first who has. False: nobody has."""
        leader = self.members.get(self.leader or "")
        if leader is not None and leader.join_waiter is not None:
            return True
        for member in self.members.values():
            if member.join_waiter is not None:
                self.leader = member.member_id
                return True
        return False

    # ---- protocols

    def supports(self, protocol_type: str, protocols: tuple[SupportedProtocol, ...]) -> bool:
        """Whether one of these protocols is supported by every member there is."""
        if not self.members:
            return protocol_type != "" and protocols != ()
        everybody = len(self.members)
        return protocol_type == self.protocol_type and any(
            self._supporters[name] == everybody for name, _ in protocols
        )

    def vote(self) -> str:
        """Each member votes for what it likes best of what all support. Of equals, the one that got a vote first."""
        everybody = len(self.members)
        candidates = {name for name, supporters in self._supporters.items() if supporters == everybody}
        votes = Counter(
            next(name for name, _ in member.protocols if name in candidates)
            for member in self.members.values()
        )
        return max(votes, key=votes.__getitem__)

    def update(
        self,
        member: ClassicMember,
        protocols: tuple[SupportedProtocol, ...],
        *,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
    ) -> None:
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    @property
    def common_protocols(self) -> list[str]:
        """For messages: what every member supports."""
        return sorted(name for name, count in self._supporters.items() if count == len(self.members))

    def _count_protocols(self, member: ClassicMember, step: int) -> None:
        for name, _ in member.protocols:
            self._supporters[name] += step
            if not self._supporters[name]:
                del self._supporters[name]

    # ---- states

    def enter(self, state: State, wall_ms: int) -> None:
        assert state in FOLLOWED_BY[self.state], f"{self.group_id}: {self.state.value} to {state.value}"
        self.state = state
        self.state_since_ms = wall_ms

    def next_generation(self, wall_ms: int) -> None:
        self.generation += 1
        self.protocol = self.vote()
        self.subscribed_topics = None
        self.is_followed_up = None
        self.enter(State.COMPLETING_REBALANCE, wall_ms)

    def take_assignments(self, value: GroupMetadataValue) -> None:
        for stored in value.members:
            self.members[stored.member_id].assignment = stored.assignment
        self.enter(State.STABLE, value.current_state_timestamp)

    def become_empty(self, value: GroupMetadataValue) -> None:
        assert not self.members
        self.generation = value.generation
        self.protocol = None
        self.subscribed_topics = None
        self.enter(State.EMPTY, value.current_state_timestamp)

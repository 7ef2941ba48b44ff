"""What a node of the quorum knows, whatever its role, and the few things that every role does with it.

Owns epoch, vote, leader and high watermark, and collects the effects of a step. `ElectionState` leaves with the first effect of a step in which it
changed. Epochs never go back, nor does the high watermark, nor is a vote changed within an epoch (I11, I14): a breach is a bug, and fails loudly.
"""

from __future__ import annotations

from typing import Any

from tidelog.errors import CorruptDataError
from tidelog.ports import Rng
from tidelog.quorum.effects import Answer, Committed, Effect, LeaderIs, Outbox, Send
from tidelog.quorum.log import LogView
from tidelog.quorum.roles import NEVER, Call, Role, Unattached
from tidelog.quorum.values import ElectionState, QuorumSettings


class Node:
    def __init__(
        self, settings: QuorumSettings, log: LogView, rng: Rng, stored: ElectionState | None
    ) -> None:
        self.settings = settings
        self.voters = settings.voters
        self.id = settings.node_id
        self.log = log
        self.rng = rng
        # A log from before there was a quorum state knows an epoch as well.
        self.state = stored or ElectionState(epoch=log.end.epoch)
        if self.state.epoch < log.end.epoch:
            raise CorruptDataError(
                f"the metadata log is in epoch {log.end.epoch}, the quorum state in epoch {self.state.epoch}:"
                " one of the two was put back from an old copy"
            )
        # What was read may be in the page cache only, if the process before was killed: it is made durable before anything is said.
        self.persisted: ElectionState | None = None
        self.role: Role = Unattached(NEVER)
        self.high_watermark = log.high_watermark
        self.heard_at: float | None = None
        """When the leader of this epoch last answered a fetch."""
        self.suspects_leader = False
        """The connection to it is lost: others who want to know whether it is still there are told no, until it answers again."""
        self._announced: tuple[int | None, int] | None = None
        self._request_id = 0
        self.out = Outbox()

    # ---- epoch, vote, leader

    @property
    def epoch(self) -> int:
        return self.state.epoch

    @property
    def leader_id(self) -> int | None:
        return self.state.leader_id

    def enter_epoch(self, epoch: int) -> None:
        if epoch <= self.state.epoch:
            raise AssertionError(f"epoch {epoch} after epoch {self.state.epoch}")
        self.state = ElectionState(epoch)
        self._forget_leader()

    def vote_for(self, node_id: int) -> None:
        if self.state.voted_id not in (None, node_id):
            raise AssertionError(
                f"a second vote in epoch {self.epoch}: {node_id} after {self.state.voted_id}"
            )
        self.state = self.state._replace(voted_id=node_id)

    def set_leader(self, leader_id: int | None) -> None:
        if leader_id is not None and self.leader_id not in (None, leader_id):
            raise AssertionError(f"two leaders in epoch {self.epoch}: {self.leader_id} and {leader_id}")
        if leader_id != self.leader_id:
            self.state = self.state._replace(leader_id=leader_id)
            self._forget_leader()

    # ---- effects

    def send(self, to: int, request: Any) -> int:
        self._request_id += 1
        self.out.messages.append(Send(self._request_id, to, request))
        return self._request_id

    def answer(self, token: int, response: Any) -> None:
        self.out.messages.append(Answer(token, response))

    def sync_log(self) -> None:
        self.out.sync = True

    def advance_high_watermark(self, offset: int) -> bool:
        if offset <= self.high_watermark:
            return False
        self.high_watermark = offset
        self.out.news.append(Committed(offset))
        return True

    def take_effects(self) -> list[Effect]:
        out, self.out = self.out, Outbox()
        if self.state != self.persisted:
            out.state = self.persisted = self.state
        if self._announced != (self.leader_id, self.epoch):
            self._announced = (self.leader_id, self.epoch)
            out.news.insert(0, LeaderIs(self.leader_id, self.epoch))
        return out.in_order()

    # ---- time and chance

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self.rng.random()

    def election_wait(self) -> float:
        """Never the same on two nodes, so that they do not go on asking for votes at the same moment."""
        timeout = self.settings.election_timeout_s
        return self.between(timeout, 2 * timeout)

    def fetch_wait(self) -> float:
        """Nodes that have lost the same leader at the same moment do not notice at the same moment."""
        return self.settings.fetch_timeout_s + self.between(0, self.settings.election_timeout_s / 2)

    # ---- requests that are repeated

    def call(self, call: Call, to: int, request: Any) -> None:
        call.request_id = self.send(to, request)
        call.retry_at = NEVER

    def failed(self, call: Call, now: float, *, backoff_max_s: float | None = None) -> None:
        """Again after a while; the while doubles (I52)."""
        call.request_id = None
        limit = self.settings.fetch_timeout_s / 4 if backoff_max_s is None else backoff_max_s
        call.retry_at = now + min(limit, self.settings.retry_backoff_s * 2 ** min(call.failures, 10))
        call.failures += 1

    def hear_leader(self, now: float) -> None:
        self.heard_at = now
        self.suspects_leader = False

    def hears_leader(self, now: float) -> bool:
        """A majority of such voters keep their leader (KIP-996)."""
        is_recent = self.heard_at is not None and now - self.heard_at < self.settings.fetch_timeout_s
        return is_recent and not self.suspects_leader

    def _forget_leader(self) -> None:
        self.heard_at = None
        self.suspects_leader = False


def answered_call(calls: dict[int, Call], request_id: int) -> tuple[int, Call] | None:
    """Whose call this was, if it is one of the present role's. Answers to questions of an earlier role count for nothing."""
    for to, call in calls.items():
        if call.request_id == request_id:
            return to, call
    return None

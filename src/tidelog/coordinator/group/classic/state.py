"""The five states of a classic group, and which may follow which.

A group begins **Empty**. It is also Empty after its last member has left: what it has committed stays, and a new member may join.

The first member that joins, and later anything that could change who reads what (a member joins, leaves, falls silent, or
subscribes to something else; the leader asks for it), puts the group into **PreparingRebalance**. JoinGroup requests are now held.
Heartbeats are answered with REBALANCE_IN_PROGRESS, which tells the members to join again. Commits of the last generation are still
taken, so that members can finish what they have read. This ends when every member has joined again, or when the longest of
the members' rebalance timeouts is over, with those who joined in time. A group that was Empty waits a little (`group.initial.rebalance.delay.ms`),
since members that are started together rarely arrive together; with newcomers, any rebalance waits for a moment in which nobody else comes
(`group.join.gather.ms`). With nobody left, the group is Empty again.

Then the group has a new generation and is in **CompletingRebalance**. Every held JoinGroup is answered; the leader's answer lists
all members. SyncGroup requests are held until the leader's comes, which brings the assignments. Members that do not ask for
their assignment within the rebalance timeout are removed, and the group prepares anew.

Once the assignments are in the log, the group is **Stable** until the next reason to rebalance.

**Dead** is a group that is no longer known: deleted, taken over by another protocol, or moved to another coordinator. Nothing finds
such a group by its id; the state exists so that its name can be told to whoever describes a group that is not there.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class State(Enum):
    """Values are what DescribeGroups and ListGroups say."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


FOLLOWED_BY: Final[dict[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.PREPARING_REBALANCE: frozenset({State.COMPLETING_REBALANCE, State.EMPTY, State.DEAD}),
    State.COMPLETING_REBALANCE: frozenset({State.STABLE, State.PREPARING_REBALANCE, State.DEAD}),
    State.STABLE: frozenset({State.PREPARING_REBALANCE, State.DEAD}),
    State.DEAD: frozenset(),
}

"""ListGroups (16), versions 0-5: the groups that this broker coordinates.

3  flexible      4  by state (KIP-518)      5  by type (KIP-848)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.dispatch import RequestContext
from tidelog.broker.pending import Pending
from tidelog.wire.messages.list_groups import ListGroupsRequest

if TYPE_CHECKING:
    from tidelog.broker.node import Broker


def handle(broker: Broker, context: RequestContext, request: ListGroupsRequest) -> Pending:
    return broker.groups.list_groups(context, request)

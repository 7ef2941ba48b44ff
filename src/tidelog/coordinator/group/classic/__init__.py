"""Classic groups: members join, one of them assigns, and the coordinator hands the assignments out (JoinGroup, SyncGroup)."""

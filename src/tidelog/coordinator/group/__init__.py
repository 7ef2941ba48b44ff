"""The group coordinator: who is in a group, which partitions each member has, and how far each has read."""

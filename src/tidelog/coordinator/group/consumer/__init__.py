"""Consumer groups of KIP-848: the coordinator computes who reads what, and each member moves there at its own pace."""

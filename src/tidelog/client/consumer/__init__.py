"""The consumer, from a subscription to records in the hands of an application, and the offsets that say how far it has come."""

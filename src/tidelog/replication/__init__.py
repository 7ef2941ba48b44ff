"""One partition across brokers: who leads it, what is committed, who waits for what."""

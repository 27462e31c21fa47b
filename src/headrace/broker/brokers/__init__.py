"""One broker among others: membership, ownership, leadership, metadata of other brokers, reads from remote leaders."""

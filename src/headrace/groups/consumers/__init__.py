"""Consumer groups of KIP-848, in which the server assigns partitions. Pure. May not import the classic group."""

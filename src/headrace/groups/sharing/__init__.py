"""Share groups (KIP-932): members that share the records of a partition. Pure."""

"""`headrace archive` in two processes: one that watches, shows and counts, and the one with Spark in it."""

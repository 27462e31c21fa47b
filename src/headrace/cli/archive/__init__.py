"""`headrace archive` in two processes: a supervisor that shows and counts, and a child with Spark."""

"""`format("headrace.delta")`: write rows to a Delta table by delta-rs, exactly once, without a jar."""

"""`format("headrace.delta")`: rows into a Delta table by delta-rs, exactly once, without a jar."""

"""Time, the event loop and budgets: clock, scheduler, retry, concurrency. Imports no other part of the broker."""

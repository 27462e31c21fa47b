"""Clock, scheduler, memory budgets, retries and bounded concurrency. Imports no other part of the broker."""

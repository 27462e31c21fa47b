"""For tests, ours and our users': server fixture, manual clock, fault injection."""

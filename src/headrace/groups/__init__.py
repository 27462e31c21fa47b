"""The consumer group as a pure state machine: (event, now) in, an ordered list of effects out."""

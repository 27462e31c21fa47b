"""The transaction coordinator as a pure state machine: (event, now) in, an ordered list of effects out."""

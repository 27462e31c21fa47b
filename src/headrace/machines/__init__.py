"""What the state machines of coordinators share: the moment of an event, and the effects that they return. Pure.

May import nothing of Headrace.
"""

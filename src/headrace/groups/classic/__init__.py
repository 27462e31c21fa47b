"""The classic consumer group: join, sync, heartbeat, leave, commit.

Pure: time and new ids are arguments. May import `groups`, and not the balanced group.
"""

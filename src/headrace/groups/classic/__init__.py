"""The classic consumer group: join, sync, heartbeat, leave, commit. Pure. May not import the balanced group."""

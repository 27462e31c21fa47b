"""The classic consumer group: join, sync, heartbeat, leave, commit. Pure."""

"""The group coordinator: groups, their runners and timers, instances, lag."""

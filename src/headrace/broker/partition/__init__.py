"""One partition: leader, readers, cache, high watermark, producer snapshots, recovery, remote (tiered) storage.

Reaches storage and archives through interfaces.
"""

"""One partition: leader, reader, cache, high watermark, producer snapshots, recovery, tiered storage."""

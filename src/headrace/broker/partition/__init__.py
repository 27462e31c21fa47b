"""One partition: leader, readers, cache, high watermark, transactions, cleaning, recovery, remote (tiered) storage.

Reaches storage and archives through interfaces.
"""

"""What this project's own tests drive the server with: raw Kafka requests, members, groups, clients, storages, ledgers.

What users test with is `headrace.testing`.
"""

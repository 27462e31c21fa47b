"""Who asks, and what may be asked for: principals, resources, operations, and what each API says it needs. Pure.

Every Kafka API and every OCI operation is registered with its rules (`needs=`). Nobody judges them yet: who reaches a
listener may do everything there. An authorizer has one place to ask in each protocol, where a request has been read and
nothing done: `Connection._decode` (and `_serve` for shortcuts) in `kafka/connection.py`, `OciApp._run` in
`oci/asgi.py`.
"""

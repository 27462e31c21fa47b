"""Who asks, and what may be asked for: principals, resources, operations, and what each API says it needs. Pure.

Every Kafka API, every OCI operation and every page is registered with what it needs (`needs=`). Where access rules hold
(`authorizer.class.name`), each protocol has one place that asks, where a request has been read and nothing done:
`kafka/server/authorization.py`, `oci/app.py`, and `Page.check` in `console/registry.py`.
`broker/admin/acl_authorizer.py` keeps the rules.
"""

"""Principals, resources, operations, and the ACLs that APIs need. Pure.

Each Kafka API, OCI operation and page declares its needs (`needs=`). With `authorizer.class.name`, each protocol
authorizes a decoded request in one place: `kafka/server/authorization.py`, `oci/app.py`, and `Page.check` in
`console/registry.py`. `broker/admin/authorizer.py` stores the ACLs.
"""

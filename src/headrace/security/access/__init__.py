"""Principals, resources, operations, and the ACLs that APIs need. Pure.

Each API and page declares its needs (`needs=`). With `authorizer.class.name`, decoded requests are authorized in
`kafka/server/authorization.py`, `oci/app.py`, and `Page.check` in `console/registry.py`.
`broker/admin/acl_authorizer.py` stores the ACLs.
"""

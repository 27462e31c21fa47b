"""Share groups (KIP-932) at the leaders of partitions: who holds which records, and the sessions of their members.

The group coordinator knows members and assignments (`headrace.groups.sharing`). A leader serves any member.
"""

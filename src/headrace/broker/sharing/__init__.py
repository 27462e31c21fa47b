"""Share groups (KIP-932) at the leaders of partitions: the records that members hold, and the sessions of members.

The group coordinator has members and assignments (`headrace.groups.sharing`). A leader serves any member.
"""

"""What Redis answers about native topics' keys, as errors of topics: others may do with those keys what they like."""

import hiredis

from headrace.storage.redis import replies
from headrace.storage.redis.protocol import Reply
from headrace.topics.native import NotAStream


def error_of(reply: Exception) -> Exception:
    """What an error that was answered, or took the place of an answer, is for those who asked."""
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("WRONGTYPE"):
        return NotAStream("the key of a native topic's stream holds something else")
    if isinstance(reply, hiredis.ReplyError) and str(reply).startswith("CROSSSLOT"):
        return NotAStream(
            "on a Redis Cluster a stream with braces in its key cannot be part of a topic: what is kept beside it "
            "would be in another slot; rename it"
        )
    return replies.error_of(reply)


def checked(reply: Reply) -> Reply:
    """The reply; raised when it is an error."""
    if isinstance(reply, Exception):
        raise error_of(reply)
    return reply

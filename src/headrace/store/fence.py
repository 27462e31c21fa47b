"""The number under which a server writes: all that it sends says it, and Redis refuses older ones."""


class Fence:
    """The epoch of a server that is alone, or the number of the view that it goes by. It only rises."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number

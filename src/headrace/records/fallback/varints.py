"""Numbers as records have them, written in Python: zigzag varints of Java's longs."""

_SHORT = tuple(bytes([number]) for number in range(128))


def varint(number: int) -> bytes:
    """A zigzag varint of up to 64 bits."""
    number = number << 1 ^ number >> 63
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def wrap(number: int) -> int:
    """The number as Java's long would hold it; readers add it to the base timestamp wrapping too."""
    return (number + 2**63) % 2**64 - 2**63

"""Numbers for people: bytes in decimal units."""


def readable(nbytes: float) -> str:
    """Such as "5.14 GB", "80.38 kB", "12 bytes"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"

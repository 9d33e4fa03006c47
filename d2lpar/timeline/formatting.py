"""Numbers for people: bytes in decimal units, seconds in the unit that fits."""


def bytes_text(nbytes: float) -> str:
    """Such as "5.14 GB", "80.38 kB", "12 bytes"."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if nbytes >= size:
            return f"{nbytes / size:.2f} {unit}"
    return f"{nbytes} bytes"


def seconds_text(seconds: float) -> str:
    """Three digits and the unit that fits: "1.25 ms"."""
    for unit, per_s in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * per_s >= 1:
            return f"{seconds * per_s:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"

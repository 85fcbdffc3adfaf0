"""What one check found."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        check: its name.
        expected: what a right step would show.
        seen: what this one showed.
        p_value: the probability that a right step shows so much or more; None if the
            check is exact, and involves no chance.
        wrong: whether an exact check failed. Whether a p-value is small enough is for the
            report to say, which knows how many there are.
        cause: what usually causes it.
        note: what is worth a word without being a fault, such as more noise than claimed.
    """

    check: str
    expected: str
    seen: str
    p_value: float | None = None
    wrong: bool = False
    cause: str = ''
    note: str = ''

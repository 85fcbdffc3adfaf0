"""What one check found."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one check found. Whether a p-value is too small depends on how many there are."""

    check: str  # its name
    expected: str  # what a right step would show
    seen: str  # what this one showed
    p_value: float | None = None  # that a right step shows as much; None if the check is exact
    wrong: bool = False  # whether an exact check failed
    cause: str = ''  # what usually causes it
    note: str = ''  # what is worth a word and no fault, such as more noise than claimed

"""Numbers as text: ∞ for people, and words for infinities in JSON, which knows none."""

import json
import math
from typing import Any


def to_json(content: Any, indent: int | None = 2) -> str:
    """JSON in which numbers that are not finite are strings: "inf", "-inf", "nan"."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(content), indent=indent, ensure_ascii=False, allow_nan=False)


def number_text(value: float, form: str = '.4g') -> str:
    """A number as people read it, with ∞ in the place of `inf`."""
    return f'{value:{form}}'.replace('inf', '∞')

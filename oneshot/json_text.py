"""JSON, with infinities as words."""

import json
import math
from typing import Any


def to_json(content: Any, indent: int | None = 2) -> str:
    """JSON with infinities as strings, which JSON itself does not know."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [plain(one) for one in value]
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(plain(content), indent=indent, ensure_ascii=False, allow_nan=False)

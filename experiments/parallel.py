"""A function of an index, for many of them at once, with a progress bar."""

import concurrent.futures
from collections.abc import Callable
from typing import Any

from rich.progress import track


def simulate(function: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
    """function(index, *arguments) for each index below `count`, in this order."""
    with concurrent.futures.ProcessPoolExecutor() as pool:
        futures = [pool.submit(function, index, *arguments) for index in range(count)]
        finished = concurrent.futures.as_completed(futures)
        for _ in track(finished, description='simulating', total=count):
            pass
    return [future.result() for future in futures]

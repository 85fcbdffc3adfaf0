"""What the command lines have in common."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any


def make_parser(prog: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser whose --help ends with `epilog`, line by line as it is written."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog.replace('PROG', prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def answer(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    compute: Callable[[argparse.Namespace], Any],
    record: Callable[[Any], dict],
    show: Callable[[Any], None],
) -> Any:
    """Computes an answer from the flags and prints it, as JSON with --json.

    Bad input, any ValueError, OSError or ImportError of `compute`, is printed to stderr as one
    sentence, and ends the program with exit status 2.
    """
    parser.add_argument('--json', action='store_true', help='print JSON')
    flags = parser.parse_args(argv)

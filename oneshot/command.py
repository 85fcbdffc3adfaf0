"""What the commands bound, plan and check have in common: `main(argv, prog)` returns a status."""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from oneshot.json_text import to_json


def make_parser(prog: str, usage: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser whose --help has its epilog line by line, with %(prog)s for the command."""
    help_format = functools.partial(
        argparse.RawDescriptionHelpFormatter, width=100, max_help_position=36
    )
    return argparse.ArgumentParser(
        prog, f'%(prog)s {usage}', description, epilog, formatter_class=help_format
    )


def run(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    answer: Callable[[argparse.Namespace], Any],
    record: Callable[[Any], dict[str, Any]],
    show: Callable[[Any], None],
    status: Callable[[Any], int] = lambda _: 0,
) -> int:
    """Prints the answer to the flags by `show`, or its `record` as JSON with --json.

    Returns the exit status: that of the answer, or 2 after a sentence about bad input, which is
    any ValueError, OSError or ImportError of `answer`.
    """
    parser.add_argument('--json', action='store_true', help='print JSON')
    flags = parser.parse_args(argv)
    try:
        result = answer(flags)
    except (ValueError, OSError, ImportError) as error:
        print(f'{parser.prog}: {error}', file=sys.stderr)
        return 2
    if flags.json:
        print(to_json(record(result)))
    else:
        show(result)
    return status(result)

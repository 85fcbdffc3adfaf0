"""Draws all figures, and makes their page: python -m experiments.figures --help."""

import sys

from experiments import figures
from experiments.figures import figure, page


def main(argv: list[str] | None = None) -> int:
    """Draws what can be drawn; returns the exit status."""
    parser = figure.parser('Every figure of the paper and ours, and experiments/RESULTS.md.')
    names = (*figures.PAPERS, *figures.BEYOND)
    parser.add_argument('--only', nargs='+', choices=names, metavar='NAME', help='these alone')
    flags = parser.parse_args(argv)
    drawn, problems = [], []
    for name in flags.only or names:
        made = figure.load(name)
        try:
            drawn.append((made, made.make(flags.full, flags.data_dir)))
        except ValueError as error:
            problems.append(f'{name}: {error}')
            print(f'{problems[-1]}\n', file=sys.stderr)
    if len(drawn) == len(names) and not flags.full:
        page.PAGE.write_text(page.text(drawn))
        print(f'All {len(drawn)} figures are on {page.PAGE}.')
    if problems:
        print('These could not be drawn:', *problems, sep='\n', file=sys.stderr)
    return 2 if problems else 0


if __name__ == '__main__':
    sys.exit(main())

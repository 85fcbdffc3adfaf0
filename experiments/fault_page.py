"""The page and the picture of the fault zoo, from its results, for `experiments.faults`."""

import collections
import contextlib
import io
import pathlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments import faults
from experiments.csv_files import Row
from oneshot import check

ENOUGH = 18  # seeds of 20 in which ε_LB is above the claim, for the audit to have found it
AUDIT = 'audit by '  # how the checks of the audit in one run begin
WORDS = ('kind', 'name', 'model', 'checks')
NUMBERS = ('seed', 'eps_claimed', 'eps_lb', 'least_p')
LIBRARIES = {  # what they are called, and the package
    'optax_dpsgd': ('optax.contrib.dpsgd', 'optax'),
    'jax_privacy_step': ('jax_privacy: clipped_grad, gaussian_privatizer', 'jax_privacy'),
}


def _checks(row: Row) -> list[str]:
    return [one for one in row['checks'].split('; ') if one]


class Found(NamedTuple):
    """What the seeds of a subject came to.

    Attributes:
        seeds: how many there were.
        above: in how many of them ε_LB was above the claim.
        exact: the checks beside the audit that failed, and in how many seeds.
        alarms: in how many seeds the doctor found any fault.
    """

    seeds: int
    above: int
    exact: dict[str, int]
    alarms: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> 'Found':
        failed = [one for row in rows for one in _checks(row) if not one.startswith(AUDIT)]
        return cls(
            len(rows),
            sum(row['eps_lb'] > row['eps_claimed'] for row in rows),
            dict(collections.Counter(failed).most_common()),
            sum(bool(row['checks']) for row in rows),
        )

    @property
    def by_audit(self) -> bool:
        return 20 * self.above >= ENOUGH * self.seeds

    @property
    def by_exact(self) -> bool:
        return self.seeds in self.exact.values()

    @property
    def means(self) -> str:
        if self.by_audit and self.by_exact:
            return 'both'
        return 'one-run audit' if self.by_audit else 'exact check' if self.by_exact else 'nothing'


def _groups(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """By kind, name and model."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[row['kind'], row['name'], row['model']].append(row)
    return dict(groups)


def _table(columns: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """In Markdown."""
    rows = [columns, ['---'] * len(columns), *lines]
    return '\n'.join(f'| {" | ".join(map(str, row))} |' for row in rows)


def _title(kind: str, name: str) -> str:
    if kind in ('fault', 'control'):
        return (faults.FAULTS | faults.CONTROLS)[name].title
    return LIBRARIES[name][0] if kind == 'library' else f'our own step, {name}'


def _spread(rows: Sequence[Row]) -> str:
    """The median of ε_LB, and between which it lies."""
    bounds = [row['eps_lb'] for row in rows]
    return f'{np.median(bounds):.2f} ({min(bounds):.2f} to {max(bounds):.2f})'


def _fault_line(name: str, rows: Sequence[Row]) -> list[str]:
    fault, found = faults.FAULTS[name], Found.of(rows)
    return [
        fault.title,
        f'[{fault.where}]({fault.url})',
        f'{fault.eps:g}',
        _spread(rows),
        f'{found.above} of {found.seeds}',
        found.means,
        ', '.join(one if n == found.seeds else f'{one} ({n})' for one, n in found.exact.items()),
    ]


def _quiet_line(kind: str, name: str, model: str, rows: Sequence[Row]) -> list[str]:
    found, title = Found.of(rows), _title(kind, name)
    url = faults.CONTROLS[name].url if kind == 'control' else ''
    return [
        f'[{title}]({url})' if url else title,
        model,
        f'{rows[0]["eps_claimed"]:.2g}',
        _spread(rows),
        f'{found.alarms} of {found.seeds}',
    ]


def _version(package: str) -> str:
    """As it is installed by make."""
    pinned = pathlib.Path(__file__).parents[1] / 'constraints.txt'
    return re.search(rf'(?m)^{package}==(\S+)', pinned.read_text())[1]


def _library_line(name: str, rows: Sequence[Row]) -> list[str]:
    found, (title, package) = Found.of(rows), LIBRARIES[name]
    failed = [f'{one}, {n} of {found.seeds}' for one, n in found.exact.items()]
    return [
        f'{title} ({_version(package)})',
        f'{rows[0]["eps_claimed"]:.2g}',
        _spread(rows),
        f'{found.above} of {found.seeds}',
        ', '.join(failed) or 'none',
    ]


MINIMAL = """import jax
import jax.numpy as jnp
import optax

gradients = jnp.array([[jnp.inf], [1.0]])  # of two examples, one coordinate each
for drawn in (gradients, gradients[1:]):
    private = optax.contrib.differentially_private_aggregate(
        l2_norm_clip=1.0, noise_multiplier=5.0, key=jax.random.key(0)
    )
    print(private.update(drawn, private.init(None))[0].round(1))
"""


def minimal_output() -> str:
    """What the minimal case prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(MINIMAL, {})
    return printed.getvalue()


PAGE = """\
# The fault zoo

Bugs of DP-SGD that people really make, one at a time, and what the doctor, `oneshot.check`,
finds of them. Made by `python -m experiments.faults`, from `results/faults.csv`. The steps are
in `experiments/fault_steps.py`, with what is wrong marked by a comment, and
`python -m oneshot.check experiments.faults:noise_missing` examines one of them.

![Claimed ε and ε_LB, fault by fault](results/faults.png)

Of {faults} faults the doctor finds {found} in every seed.

- The one-run audit alone finds {by_audit}: ε_LB, with 95 % confidence and with nothing assumed
  beyond (ε, δ)-DP, is above the claimed ε in at least {enough} of 20 seeds.
- An exact check, or a statistical one beside the audit, finds {by_exact} in every seed.

ε is at δ = 1e-5 after 100 steps; ε_LB is the largest by any of up to four scores, each with its
share of the 5 %, and is given as the median of the seeds, the least and the largest. A number
after a check says in how many seeds it failed, if not in all.

{fault_table}

“Warned of” and “near” say that no case was found in which it happened to DP-SGD as it does here.

## No false alarm

The doctor promises a false alarm in at most {rate:g} of examinations: a check with a p-value fails
if that is below {rate:g} divided by the number of such checks. In {runs} examinations of steps that
are right or too careful, over models and seeds, there were {alarms} alarms. So few say little
about so small a rate, but they do say that p-values are p-values: the least of an examination,
times their number, was below 5 % in {five:.1f} % of them, and below 1 % in {one:.1f} %.

{quiet_table}

## Libraries

{library_table}

optax scales a gradient that is not finite by its clip factor, and ∞ times 0 is no number: one
example decides whether all that is released is finite. The minimal case, with such an example
and without it:

```python
{minimal}```

prints

```
{printed}```

optax promises no ε of its own; the standard accountant's does not hold then. What other uses of
optax, jax_privacy and Opacus come to is measured by `python -m experiments.audit_peers`. Our own
step is in the table before.
"""


def page(rows: Sequence[Row]) -> str:
    """The catalogue, with its results."""
    groups = _groups(rows)
    zoo = {name: one for (kind, name, _), one in groups.items() if kind == 'fault'}
    quiet = {key: one for key, one in groups.items() if key[0] in ('control', 'own')}
    libraries = {name: one for (kind, name, _), one in groups.items() if kind == 'library'}
    every = [Found.of(one) for one in zoo.values()]
    runs = [row for one in quiet.values() for row in one]
    least = np.array([row['least_p'] for row in runs])
    return PAGE.format(
        faults=len(every),
        found=sum(one.alarms == one.seeds for one in every),
        by_audit=sum(one.by_audit for one in every),
        by_exact=sum(one.by_exact for one in every),
        enough=ENOUGH,
        rate=check.FALSE_ALARM_RATE,
        runs=len(runs),
        alarms=sum(bool(row['checks']) for row in runs) or 'no',
        five=100.0 * np.mean(least <= 0.05),
        one=100.0 * np.mean(least <= 0.01),
        fault_table=_table(
            ('fault', 'where', 'ε', 'ε_LB', 'above', 'found by', 'exact checks that fail'),
            [_fault_line(name, one) for name, one in zoo.items()],
        ),
        quiet_table=_table(
            ('step', 'model', 'ε', 'ε_LB', 'alarms'),
            [_quiet_line(*key, one) for key, one in quiet.items()],
        ),
        library_table=_table(
            ('step', 'ε', 'ε_LB', 'above', 'exact checks that fail'),
            [_library_line(name, one) for name, one in libraries.items()],
        ),
        minimal=MINIMAL,
        printed=minimal_output(),
    )


def plot(rows: Sequence[Row], path: pathlib.Path) -> None:
    """ε claimed and ε_LB of every seed, subject by subject."""
    from matplotlib.figure import Figure

    groups = {key: one for key, one in _groups(rows).items() if key[2] == 'mlp'}
    figure = Figure(figsize=(10.0, 0.3 * len(groups) + 1.2), layout='constrained')
    axes = figure.subplots()
    heights = np.arange(len(groups))[::-1]
    names = []
    for height, ((kind, name, _), found) in zip(heights, groups.items(), strict=True):
        claimed = found[0]['eps_claimed']
        bounds = np.array([row['eps_lb'] for row in found])
        spread = height + np.linspace(-0.25, 0.25, bounds.size)
        over = bounds > claimed
        axes.plot(bounds[~over], spread[~over], '.', color='tab:blue', markersize=5)
        axes.plot(bounds[over], spread[over], '.', color='tab:red', markersize=5)
        axes.vlines(claimed, height - 0.4, height + 0.4, color='black', linewidth=2)
        if Found.of(found).by_exact:
            axes.plot(4.5, height, 'x', color='tab:red', markersize=6, clip_on=False)
        names.append(_title(kind, name))
    axes.plot([], [], color='black', linewidth=2, label='claimed ε')
    axes.plot([], [], '.', color='tab:blue', label='ε_LB of a seed')
    axes.plot([], [], '.', color='tab:red', label='above the claim')
    axes.plot([], [], 'x', color='tab:red', linestyle='', label='an exact check fails')
    kinds = [kind for kind, _, _ in groups]
    for kind in ('control', 'library'):  # a line before the first of them
        axes.axhline(len(groups) - kinds.index(kind) - 0.5, color='gray', linewidth=0.8)
    axes.set_yticks(heights, names, fontsize=9)
    axes.set_xlim(0.0, 4.6)
    axes.set_ylim(-0.6, len(groups) - 0.4)
    axes.set_xlabel('ε at δ = 1e-5, with 95 % confidence, nothing assumed beyond (ε, δ)-DP')
    axes.grid(axis='x', alpha=0.3)
    axes.spines[['top', 'right']].set_visible(False)
    figure.legend(frameon=False, ncols=4, loc='outside upper center', fontsize=9)
    figure.savefig(path, dpi=110)

"""Figure fault_zoo: bugs of real DP-SGD code, and by what they are found."""

import sys

import matplotlib.figure
import numpy as np

from experiments import fault_page, fault_table, faults
from experiments.csv_files import Row
from experiments.fault_page import Found
from experiments.fault_table import Subject
from experiments.figures import figure, style
from experiments.figures.figure import Claim
from experiments.figures.sweep import CORES, Sweep

TITLE = 'bugs of real DP-SGD code, and by what they are found'
PAPER_SAYS = 'an ε_LB above the proven ε means that proof or code is wrong. Which bugs show?'
RESULTS = '../faults'

ZOO = {'fault': faults.FAULTS, 'control': faults.CONTROLS}
SEEDS = 2  # of each, where the results of `python -m experiments.faults`, with 20, are not there


def sweep(full: bool, data_dir: str | None) -> Sweep:
    """One size for all: an audit of a step is as large as it has to be."""
    settings = [Subject(kind, name)._asdict() for kind, zoo in ZOO.items() for name in zoo]
    return Sweep(settings, measure, fault_page.WORDS, fault_page.NUMBERS, Subject.of, CORES)


def measure(setting: Row) -> list[Row]:
    return fault_table.examine(Subject.of(setting), range(SEEDS))


def groups(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row['kind'], row['name']), []).append(row)
    return found


def draw(rows: list[Row]) -> matplotlib.figure.Figure:
    zoo = groups(rows)
    labels = 'ε at δ = 1e-5', ''
    title = '24 faults of DP-SGD and 8 controls: claimed ε, ε_LB of one run'
    drawn, axes = style.figure(title, *labels, size=(11.0, 12.0))
    heights = np.arange(len(zoo))[::-1]
    for height, own in zip(heights, zoo.values(), strict=True):
        claimed, found = own[0]['eps_claimed'], np.array([row['eps_lb'] for row in own])
        spread = height + np.linspace(-0.25, 0.25, found.size)
        over = found > claimed
        axes.plot(found[over], spread[over], '.', color=style.CHOSEN)
        axes.plot(found[~over], spread[~over], '.', color=style.PAPERS_SCORE)
        axes.vlines(claimed, height - 0.4, height + 0.4, color='black', linewidth=2.5)
        if Found.of(own).by_exact:
            axes.plot(4.6, height, 'X', color=style.CHOSEN, markersize=9, clip_on=False)
    axes.plot([], [], color='black', linewidth=2.5, label='claimed ε')
    axes.plot([], [], '.', color=style.CHOSEN, label='ε_LB above it: the audit finds the fault')
    axes.plot([], [], '.', color=style.PAPERS_SCORE, label='ε_LB of a seed, consistent')
    axes.plot([], [], 'X', color=style.CHOSEN, label='found by a check beside the audit')
    axes.axhline(len(faults.CONTROLS) - 0.5, color='0.4', linewidth=1.0)
    axes.set_yticks(heights, [ZOO[kind][name].title for kind, name in zoo])
    axes.set(xlim=(0, 4.7), ylim=(-0.7, len(zoo) - 0.3))
    return drawn


def counted(rows: list[Row]) -> tuple[int, int, int, int]:
    """Faults found by the audit and by any check, false alarms, and runs of controls."""
    zoo = {
        kind: [Found.of(own) for key, own in groups(rows).items() if key[0] == kind] for kind in ZOO
    }
    audit = sum(found.by_audit for found in zoo['fault'])
    doctor = sum(found.alarms == found.seeds for found in zoo['fault'])
    return (
        audit,
        doctor,
        sum(one.alarms for one in zoo['control']),
        sum(one.seeds for one in zoo['control']),
    )


def measured(rows: list[Row]) -> list[str]:
    audit, doctor, alarms, runs = counted(rows)
    return [
        f'Of {len(faults.FAULTS)} faults the audit in one run alone finds {audit}, with ε_LB above '
        f'the claim in nine of ten seeds; with the checks of `oneshot.check` beside it, {doctor} '
        'are found in every seed.',
        f'{alarms} false alarms in {runs} examinations of controls.',
    ]


def claims(rows: list[Row]) -> list[Claim]:
    audit, doctor, alarms, runs = counted(rows)
    return [
        Claim('the doctor finds every fault', doctor == len(faults.FAULTS), f'{doctor}'),
        Claim('the audit alone finds twelve or more', audit >= 12, f'{audit}'),
        Claim('no control is found fault with', alarms == 0, f'{alarms} of {runs}'),
    ]


def differs(rows: list[Row]) -> str:
    return (
        '[`FAULTS.md`](FAULTS.md) says what each of them is and where it happened. What the audit '
        'does not find leaves the scores of its canaries as they are: sampling that is not '
        'Poisson, gradients that are not finite, a denominator that tells the batch size.'
    )


if __name__ == '__main__':
    sys.exit(figure.main('fault_zoo'))

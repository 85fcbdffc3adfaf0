"""Which guesses a run will make: planned before its first step, and written down."""

import dataclasses
from typing import Any, NamedTuple

import ml_collections

from oneshot.plan.score_law import Scoring
from oneshot.results.methods import METHODS
from oneshot.run.selection import Selection
from oneshot.scores.front_door import Rule, choose_rule


class PlannedGuesses(NamedTuple):
    """How guesses are chosen from scores.

    Attributes:
        rule: the name of the rule, a key of `oneshot.guess.RULES`.
        guesses: what `audit_scores` takes.
    """

    rule: str
    guesses: Rule


Plan = dict[tuple[str, str], PlannedGuesses]  # by score and method


def plan_run(
    config: ml_collections.ConfigDict,
    selected: Selection,
    mechanisms: dict[str, Scoring],
    confidence: float,
) -> Plan:
    """The guesses for every score by every method. They follow from the config alone."""
    options, plan = config.audit, {}
    counts = None if options.k_plus is None else (options.k_plus, options.k_minus)
    for score in selected.names:
        for name in selected.methods[score]:
            method = METHODS[name]
            if method.needs == 'samples':
                plan[score, name] = PlannedGuesses('fixed', (0, 0))  # it uses the scores
                continue
            rule = counts or options.guesses
            if method.needs == 'confusion' or name == 'weighted':  # by a threshold, or by weights
                rule = 'planned'
            setting = {'delta': config.dp.delta, 'confidence': confidence, 'method': name}
            chosen = choose_rule(rule, options.m, **setting, mechanism=mechanisms.get(score))
            plan[score, name] = PlannedGuesses(*chosen)
    return plan


def plan_as_json(plan: Plan) -> list[dict[str, Any]]:
    """The rows of plan.json."""
    rows = []
    for (score, method), (rule, guesses) in plan.items():
        if isinstance(guesses, tuple):
            values = dict(zip(('k_plus', 'k_minus'), guesses, strict=True))
        else:
            values = dataclasses.asdict(guesses)
        rows.append({'score': score, 'method': method, 'rule': rule} | values)
    return rows

"""oneshot: is my DP training really as private as it claims?

A lower bound on ε from one training run, after Steinke, Nasr and Jagielski,
"Privacy Auditing with One (1) Training Run" (2023).

Every name here is loaded when it is first used: `import oneshot` imports no room.
"""

import importlib

__version__ = '0.1.0'

# Where each public name lives: a room, or a name in one.
_HOMES = {
    'AuditResult': 'results',
    'DPSGD': 'claims',
    'audit': '',
    'audit_algorithm': 'scores',
    'audit_guesses': 'scores',
    'audit_scores': 'scores',
    'bounds': '',
    'check': '',
    'claims': '',
    'dpsgd': '',
    'guess': 'results',
    'plan': '',
    'plan_audit': 'plan',
    'pool': 'scores',
    'run': '',
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    room = _HOMES[name]
    if not room:
        return importlib.import_module(f'oneshot.{name}')
    return getattr(importlib.import_module(f'oneshot.{room}'), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *_HOMES))

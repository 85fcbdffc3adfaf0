"""The keys of a config, and everything that is wrong with their values, listed at once."""

import difflib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

from oneshot import inputs
from oneshot.audit.score import ATTACKS, SIGNALS
from oneshot.data import models
from oneshot.dpsgd.clipping import STRATEGIES
from oneshot.json_text import to_json
from oneshot.keep.workdir import Workdir
from oneshot.plan.score_law import WEIGHINGS
from oneshot.results.guess import RULES
from oneshot.results.methods import METHODS

# Keys that may differ when a run goes on: how often it is kept, where its data lies, and on
# which devices it runs.
RESUMABLE_KEYS = (
    *('checkpoint_every', 'checkpoint_keep', 'data_dir', 'mesh.data', 'mesh.model'),
    *('processes.address', 'processes.number', 'processes.id'),
)

_MAPPINGS = Mapping, ConfigDict
Check = Callable[[str, Any], Any]  # of a name and a value; raises a ValueError


def _number(*interval: float, ends: str = '[]') -> Check:
    return lambda name, value: inputs.real(name, value, *interval, ends=ends)


def _one_of(*allowed: str) -> Check:
    return lambda name, value: inputs.choice(name, value, allowed)


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _kind(kind: type | tuple[type, ...], words: str) -> Check:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind):
            raise ValueError(f'{name} must be {words}, but {value!r} was given.')

    return check


def _whole(low: int, high: int = inputs.MOST) -> Check:
    def check(name: str, value: Any) -> None:
        inputs.count(name, value, low, high)
        _INT(name, value)  # 3.0 is no number of steps

    return check


def _tuple_of(check: Check, least: int = 0) -> Check:
    def each(name: str, value: Any) -> None:
        if not isinstance(value, (tuple, list)) or len(value) < least:
            at_least = f' with {least} or more entries' if least else ''
            raise ValueError(f'{name} must be a tuple{at_least}, but {value!r} was given.')
        for entry in value:
            check(f'an entry of {name}', entry)

    return each


_TEXT, _BOOL, _INT = _kind(str, 'text'), _kind(bool, 'True or False'), _kind(int, 'an int')

KEYS: dict[str, Check] = {
    'seed': _whole(0, 2**32 - 1),  # JAX takes no more bits
    'steps': _whole(1, 10**7),
    'chunk': _whole(1, 10**7),
    'strategy': _one_of('auto', *STRATEGIES),
    'microbatch_size': _optional(_whole(1, 10**6)),
    'optimizer': _TEXT,
    'learning_rate': _number(0.0, math.inf, ends='[)'),
    'optimizer_options': _kind(_MAPPINGS, 'a dict of options'),
    'views': _whole(0, 10**4),
    'ema_decay': _optional(_number(0.0, 1.0, ends='[)')),
    'evaluate_every': _whole(0),
    'checkpoint_every': _whole(0),
    'checkpoint_keep': _whole(1),
    'data_dir': _optional(_TEXT),
    'mesh.data': _optional(_whole(1, 10**6)),
    'mesh.model': _whole(1, 10**6),
    'processes.address': _optional(_TEXT),
    'processes.number': _optional(_whole(1, 10**6)),
    'processes.id': _optional(_whole(0, 10**6)),
    'data.name': _TEXT,
    'data.train': _TEXT,
    'data.test': _TEXT,
    'data.n': _optional(_whole(0)),
    'model.name': _one_of(*models.MODELS),
    'model.hidden': _tuple_of(_whole(1, 10**6)),
    'model.widths': _tuple_of(_tuple_of(_whole(1, 10**6), least=1), least=1),
    'model.stride': _whole(1, 10**4),
    'model.conv': _one_of(*models.CONVS),
    'model.dtype': _one_of(*models.DTYPES),
    'dp.eps': _optional(_number(0.0, 50.0, ends='(]')),  # as far as σ is calibrated
    'dp.delta': _number(0.0, 1.0, ends='[)'),
    'dp.noise_multiplier': _optional(_number(0.0, math.inf, ends='[)')),
    'dp.clip_norm': _number(0.0, math.inf, ends='(]'),
    'dp.sampling_prob': _number(0.0, 1.0, ends='(]'),
    'audit.canaries': _one_of('dirac', 'mislabeled', 'in_distribution'),
    'audit.pairs': _BOOL,
    'audit.attacks': _tuple_of(_one_of(*ATTACKS), least=1),
    'audit.signals': _tuple_of(_one_of(*SIGNALS)),
    'audit.scores': _tuple_of(_one_of(*WEIGHINGS)),
    'audit.headline': _TEXT,
    'audit.method': _one_of(*METHODS),
    'audit.m': _whole(1, 10**8),
    'audit.guesses': _one_of(*(name for name, rule in RULES.items() if rule.for_runs)),
    'audit.k_plus': _optional(_whole(0)),
    'audit.k_minus': _optional(_whole(0)),
    'audit.confidence': _number(0.0, 1.0, ends='()'),
}


class Problems:
    """Everything that is wrong with a config so far: sentences, and the keys they are about."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.keys: set[str] = set()

    def add(self, sentence: str, *keys: str) -> None:
        """Adds a problem with some keys."""
        self.sentences.append(sentence)
        self.keys.update(keys)

    def attempt(self, keys: tuple[str, ...], function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns what the function returns; if it raises a ValueError, adds that and returns None.

        Args:
            keys: those that the function looks at; `data` stands for all below it. Where one of
                them is known to be wrong by itself, the function is not called.
            function: it may speak of the config. An argument at the beginning of its sentence is
                replaced by the key with this last part; else the keys stand before the sentence.
            *arguments: of the function.
        """
        if any(bad == key or bad.startswith(f'{key}.') for bad in self.keys for key in keys):
            return None
        try:
            return function(*arguments)
        except ValueError as error:
            sentence, blamed = _about_keys(str(error), keys)
            self.add(sentence, *(blamed if len(blamed) == 1 else ()))
            return None

    def raise_all(self) -> None:
        """Raises a ValueError with all problems, if there are any."""
        if len(self.sentences) == 1:
            raise ValueError(self.sentences[0])
        if self.sentences:
            lines = '\n'.join(f'  - {sentence}' for sentence in self.sentences)
            raise ValueError(f'{len(self.sentences)} things are wrong with the config:\n{lines}')


def _about_keys(sentence: str, keys: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """The sentence in terms of the config, and the keys that it is about."""
    if 'config.' in sentence:
        return sentence, keys
    argument = re.match(r'\w*', sentence)[0]
    for key in keys:
        key = key if key.rpartition('.')[2] == argument else f'{key}.{argument}'
        if key in KEYS:
            return f'config.{key}{sentence[len(argument) :]}', (key,)
    return f'{", ".join(f"config.{key}" for key in keys)}: {sentence}', keys


def check_values(config: ConfigDict, problems: Problems) -> None:
    """Checks every key by itself, and those that limit each other."""
    values = flatten(config)
    for key in sorted(values.keys() - KEYS.keys()):
        problems.add(unknown(key))
    for key, check in KEYS.items():
        if key not in values:
            problems.add(f'config.{key} is missing.', key)
        else:
            problems.attempt((key,), check, f'config.{key}', values[key])
    problems.attempt(('audit.m', 'audit.k_plus', 'audit.k_minus'), _check_guesses, config)
    keys = 'dp.clip_norm', 'dp.noise_multiplier', 'audit.canaries'
    problems.attempt(keys, _check_clip_norm, config)
    problems.attempt(('dp.eps', 'dp.noise_multiplier', 'dp.delta'), _check_target, config)
    problems.attempt(('audit.attacks', 'audit.canaries'), _check_attacks, config)


def flatten(config: Mapping[str, Any], prefix: str = '') -> dict[str, Any]:
    """The values of a config by their dotted keys; the options of the optimizer are one value."""
    values = {}
    for key, value in config.items():
        if isinstance(value, _MAPPINGS) and key != 'optimizer_options':
            values |= flatten(value, f'{prefix}{key}.')
        else:
            values[f'{prefix}{key}'] = value
    return values


def unknown(key: str) -> str:
    """The sentence for an unknown key, with the nearest known key."""
    last = key.rpartition('.')[2]
    by_last_part = {name.rpartition('.')[2]: name for name in KEYS}  # some forget the rest
    near = difflib.get_close_matches(key, KEYS, 1) or difflib.get_close_matches(last, by_last_part)
    hint = f'; did you mean config.{by_last_part.get(near[0], near[0])}?' if near else '.'
    return f'config.{key} is not a key of a config{hint}'


def as_json(config: ConfigDict) -> dict[str, Any]:
    """The config as JSON has it."""
    return json.loads(to_json(json.loads(config.to_json())))


def open_workdir(
    path: str | os.PathLike[str], config: ConfigDict, overwrite: bool = False
) -> Workdir:
    """The folder of a run with this config. See `Workdir`."""
    return Workdir(path, as_json(config), _differences, overwrite)


def _differences(folder: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """The keys in which two configs, as JSON has them, cannot be of one run; with both values."""
    folder, own = ({key: repr(x) for key, x in flatten(y).items()} for y in (folder, own))
    return [
        f'config.{key} ({folder.get(key, "nothing")} there, {own.get(key, "nothing")} here)'
        for key in sorted(folder.keys() | own.keys())
        if key not in RESUMABLE_KEYS and folder.get(key) != own.get(key)
    ]


def _check_guesses(config: ConfigDict) -> None:
    options = config.audit
    if (options.k_plus is None) != (options.k_minus is None):
        raise ValueError(
            'config.audit.k_plus and config.audit.k_minus must be given together, but '
            f'{options.k_plus!r} and {options.k_minus!r} were given.'
        )
    if options.k_plus is not None:
        k_plus = inputs.count('config.audit.k_plus', options.k_plus, 0, options.m)
        low, high = (0 if k_plus else 1), options.m - k_plus
        inputs.count('config.audit.k_minus', options.k_minus, low, high)


def _check_clip_norm(config: ConfigDict) -> None:
    """c·e_j needs a finite c, and so has noise of deviation σc."""
    infinite = math.isinf(config.dp.clip_norm)
    if infinite and (config.audit.canaries == 'dirac' or config.dp.noise_multiplier != 0.0):
        raise ValueError(
            'config.dp.clip_norm must be finite where noise is added and for Dirac canaries, '
            f'but {config.dp.clip_norm!r} was given.'
        )


def _check_target(config: ConfigDict) -> None:
    dp = config.dp
    if dp.noise_multiplier is None and dp.eps is None:
        raise ValueError('config.dp.eps or config.dp.noise_multiplier must be given.')
    if dp.noise_multiplier is None and dp.delta == 0.0:
        raise ValueError(
            'config.dp.delta must be above 0 where σ is calibrated to config.dp.eps: Gaussian '
            'noise has no ε at δ = 0. Set config.dp.noise_multiplier instead.'
        )


def _check_attacks(config: ConfigDict) -> None:
    if config.audit.canaries == 'dirac' and 'black_box' in config.audit.attacks:
        raise ValueError(
            'config.audit.canaries must be examples for the black-box attack of '
            'config.audit.attacks, but are Dirac.'
        )

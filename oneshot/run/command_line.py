"""The config of a command line: a file of configs/, and overrides, each with its problems."""

import collections
import functools
import importlib.util
import pathlib
import re
import warnings

import ml_collections
from absl import flags
from ml_collections import config_flags

from oneshot import inputs
from oneshot.keep import processes
from oneshot.run import settings
from oneshot.run.preparation import check

_OVERRIDE = re.compile(r'--?(?:no)?config\.([^=]*)')
_KINDS = {
    bool: 'True or False',
    int: 'an int',
    float: 'a number',
    str: 'text',
    tuple: 'a tuple',
    ml_collections.ConfigDict: 'a dict',
}


def split(arguments: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The overrides --config.KEY=VALUE of a command line by their keys, and everything else."""
    rest, overrides, given = [], {}, collections.deque(arguments)
    while given:
        one = given.popleft()
        if match := _OVERRIDE.match(one):
            if '=' not in one and match[1] != 'audit.pairs' and given and given[0][:2] != '--':
                one = f'{one}={given.popleft()}'
            overrides.setdefault(match[1], []).append(one)
        else:
            rest.append(one)
    return rest, overrides


def read(given: str, overrides: dict[str, list[str]]) -> ml_collections.ConfigDict:
    """The config of a file, with overrides, checked.

    Raises:
        ValueError: with everything that is wrong with it.
    """
    config, problems = load(given), settings.Problems()
    override(config, overrides, problems)
    join(config, problems)
    check(config, problems)
    return config


def join(config: ml_collections.ConfigDict, problems: settings.Problems) -> None:
    """Joins the other processes of the run, if what the config says of them makes sense."""
    alone, given = settings.Problems(), settings.flat(config)
    found = []
    for key in ('processes.address', 'processes.number', 'processes.id'):
        found.append(given.get(key))
        alone.attempt((key,), settings.KEYS[key], f'config.{key}', found[-1])
    if not alone.sentences:  # else the check has them
        problems.attempt(('processes',), processes.start, *found)
    if not processes.first():
        warnings.simplefilter('ignore')  # the first tells of them


def load(given: str) -> ml_collections.ConfigDict:
    """The config of `FILE.py` or `FILE.py:ARGUMENT`.

    Raises:
        ValueError: there is none, in one sentence.
    """
    name, _, argument = given.partition(':')
    path = pathlib.Path(name)
    if path.suffix != '.py' or not path.is_file():
        raise ValueError(f'--config must be a file of Python, but {name!r} was given.')
    spec = importlib.util.spec_from_file_location('oneshot_given_config', path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(argument) if argument else module.get_config()
    except Exception as error:  # of code that is not ours
        raise ValueError(
            f'{given} gives no config: {type(error).__name__}: {inputs.one_line(error)}'
        ) from error
    if not isinstance(config, ml_collections.ConfigDict):
        raise ValueError(f'get_config of {name} must give a ConfigDict, but gives {config!r}.')
    return config.lock()


def override(
    config: ml_collections.ConfigDict, overrides: dict[str, list[str]], problems: settings.Problems
) -> None:
    """Sets what is right, and takes note of what is not."""
    for key, arguments in overrides.items():
        if key.startswith('optimizer_options.'):
            problems.note(
                'config.optimizer_options is set as a whole, as in '
                '--config.optimizer_options="{\'momentum\': 0.9}".',
                'optimizer_options',
            )
        elif key not in settings.KEYS or key not in settings.flat(config):
            problems.note(settings.unknown(key))
        else:
            _set(config, key, arguments, problems)


def _set(
    config: ml_collections.ConfigDict, key: str, arguments: list[str], problems: settings.Problems
) -> None:
    """Sets one key, by the type that it has."""
    *parents, last = key.split('.')
    parent = functools.reduce(getattr, parents, config)
    given = arguments[-1].partition('=')[2]
    if given == 'None' and parent.get_type(last) is not str:
        with config.ignore_type():  # where None is none of its values, that is found later
            parent[last] = None
        return
    alone, line = flags.FlagValues(), ['', *arguments]
    try:
        if parent.get_type(last) is tuple and given.startswith('{'):  # would be an empty one
            raise ValueError
        config_flags.DEFINE_config_dict('config', config, flag_values=alone, sys_argv=line)
        alone(line)
    except Exception:  # ml_collections lets through whatever a parser raises
        kind = _KINDS[parent.get_type(last)]
        problems.note(f'config.{key} must be {kind}, but {given!r} was given.', key)

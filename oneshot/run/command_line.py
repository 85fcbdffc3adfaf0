"""The config of a command line: a file of configs/, and overrides, each with its problems."""

import collections
import contextlib
import functools
import importlib.util
import pathlib
import re
import warnings
from collections.abc import Iterator

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from oneshot import inputs
from oneshot.keep import processes
from oneshot.run import settings
from oneshot.run.validation import check

_CONFIGS = pathlib.Path(__file__).parents[1] / 'configs'
_OVERRIDE = re.compile(r'--?(?:no)?config\.([^=]*)')
_KINDS = {
    bool: 'True or False',
    int: 'an int',
    float: 'a number',
    str: 'text',
    tuple: 'a tuple',
    ConfigDict: 'a dict',
}


@contextlib.contextmanager
def terminal() -> Iterator[None]:
    """While it is entered, warnings are one line, and JAX does not name every absent backend."""
    verbosity, formatwarning = logging.get_verbosity(), warnings.formatwarning
    with warnings.catch_warnings(), processes.last_words_on_abort():
        logging.set_verbosity(logging.WARNING)
        warnings.formatwarning = lambda message, *_: f'oneshot: warning: {message}\n'
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            warnings.formatwarning = formatwarning


def split(arguments: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The overrides --config.KEY=VALUE of a command line by their keys, and everything else."""
    others, overrides, queue = [], {}, collections.deque(arguments)
    while queue:
        argument = queue.popleft()
        if match := _OVERRIDE.match(argument):
            if '=' not in argument and match[1] != 'audit.pairs' and queue and queue[0][:2] != '--':
                argument = f'{argument}={queue.popleft()}'
            overrides.setdefault(match[1], []).append(argument)
        else:
            others.append(argument)
    return others, overrides


def read(name: str, overrides: dict[str, list[str]]) -> ConfigDict:
    """The config of a name, as `load` has it, with overrides; a ValueError if it is wrong."""
    config, problems = load(name), settings.Problems()
    override(config, overrides, problems)
    join(config, problems)
    check(config, problems)
    return config


def join(config: ConfigDict, problems: settings.Problems) -> None:
    """Joins the other processes of the run, if what the config says of them makes sense."""
    keys = 'processes.address', 'processes.number', 'processes.id'
    flat = settings.flatten(config)
    values = [flat.get(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        problems.attempt((key,), settings.KEYS[key], f'config.{key}', value)
    problems.attempt(keys, processes.start, *values)
    if not processes.is_first():
        warnings.simplefilter('ignore')  # the first tells of them


def load(name: str) -> ConfigDict:
    """The config of `FILE.py`, or of a file of configs/ by its name; both with `:ARGUMENT`."""
    file, _, argument = name.partition(':')
    known = {path.stem: path for path in sorted(_CONFIGS.glob('*_[bw]b.py'))}
    path = known.get(file, pathlib.Path(file))
    if path.suffix != '.py' or not path.is_file():
        allowed = f'a file of Python, or one of {", ".join(known)}'
        raise ValueError(f'--config must be {allowed}, but {file!r} was given.')
    spec = importlib.util.spec_from_file_location('oneshot_given_config', path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(argument) if argument else module.get_config()
    except Exception as error:  # of code that is not ours
        raise ValueError(
            f'{name} gives no config: {type(error).__name__}: {inputs.one_line(error)}'
        ) from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f'get_config of {file} must give a ConfigDict, but gives {config!r}.')
    return config.lock()


def override(
    config: ConfigDict, overrides: dict[str, list[str]], problems: settings.Problems
) -> None:
    """Sets what is right, and adds a problem for what is not."""
    for key, arguments in overrides.items():
        if key.startswith('optimizer_options.'):
            problems.add(
                'config.optimizer_options is set as a whole, as in '
                '--config.optimizer_options="{\'momentum\': 0.9}".',
                'optimizer_options',
            )
        elif key not in settings.KEYS or key not in settings.flatten(config):
            problems.add(settings.unknown(key))
        else:
            _set(config, key, arguments, problems)


def _set(config: ConfigDict, key: str, arguments: list[str], problems: settings.Problems) -> None:
    """Sets one key, by the type that it has."""
    *parents, last = key.split('.')
    parent = functools.reduce(getattr, parents, config)
    value = arguments[-1].partition('=')[2]
    if value == 'None' and parent.get_type(last) is not str:
        with config.ignore_type():  # where None is none of its values, that is found later
            parent[last] = None
        return
    parser, line = flags.FlagValues(), ['', *arguments]
    try:
        if parent.get_type(last) is tuple and value.startswith('{'):  # would be an empty one
            raise ValueError
        config_flags.DEFINE_config_dict('config', config, flag_values=parser, sys_argv=line)
        parser(line)
    except Exception:  # ml_collections lets through whatever a parser raises
        kind = _KINDS[parent.get_type(last)]
        problems.add(f'config.{key} must be {kind}, but {value!r} was given.', key)

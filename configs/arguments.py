"""What may follow the colon of a config: --config=configs/cifar_wb.py:cpu,eps=4."""

from absl import flags


def parse(argument: str | None, words: tuple[str, ...], numbers: tuple[str, ...] = ()) -> dict:
    """The words that were given as True, the numbers under their names."""
    found = dict.fromkeys(words, False) | dict.fromkeys(numbers)
    for part in (argument or '').split(','):
        name, _, value = part.partition('=')
        try:
            if part in words:
                found[part] = True
            elif name in numbers:
                found[name] = float(value)
            elif part:
                raise ValueError
        except ValueError:
            allowed = ', '.join((*words, *(f'{number}=NUMBER' for number in numbers)))
            raise flags.IllegalFlagValueError(
                f'After the colon of --config may stand, with commas, {allowed}, '
                f'but {part!r} was given.'
            ) from None
    return found

"""What a compiled program moves between devices, read off its text."""

import re
from typing import Any, NamedTuple

_BYTES = {'f64': 8, 's64': 8, 'u64': 8, 'f32': 4, 's32': 4, 'u32': 4, 'bf16': 2, 'f16': 2}
_BYTES |= {'s16': 2, 'u16': 2, 's8': 1, 'u8': 1, 'pred': 1}
_KINDS = 'all-reduce', 'reduce-scatter', 'all-gather', 'all-to-all', 'collective-permute'
_OPERATION = re.compile(
    rf'= (?P<result>\(.*?\)|\S+) (?P<kind>{"|".join(_KINDS)}|collective-broadcast)(-start)?\('
)
_ARRAY = re.compile(r'\b([a-z]+\d*)\[([\d,]*)\]')
_GROUPS = re.compile(r'replica_groups=(?:\{\{([\d,]+)\}|\[(\d+),(\d+)\])')


class Collective(NamedTuple):
    """One exchange between devices."""

    kind: str
    shapes: tuple[tuple[int, ...], ...]  # of what each device has afterwards
    size: int  # bytes of that
    devices: int  # that take part in one exchange
    computation: str  # where it stands; 'ENTRY' is in no loop and no branch

    @property
    def sent(self) -> float:
        """The bytes that a device sends, as rings do it: no way sends less."""
        share = (self.devices - 1) / self.devices
        whole = self.size * (self.devices if self.kind == 'reduce-scatter' else 1)
        return share * whole * (2 if self.kind == 'all-reduce' else 1)


def collectives(compiled: Any) -> list[Collective]:
    """Every exchange in a program, as `jax.jit(f).lower(…).compile()` gives it."""
    found, computation = [], ''
    for line in compiled.as_text().splitlines():
        if line and not line[0].isspace() and line.endswith('{'):
            computation = 'ENTRY' if line.startswith('ENTRY') else line.split(' ')[0]
        if match := _OPERATION.search(line):
            arrays = [
                (_BYTES[kind], tuple(int(n) for n in sizes.split(',') if n))
                for kind, sizes in _ARRAY.findall(match['result'])
            ]
            size = sum(width * _product(shape) for width, shape in arrays)
            groups = _GROUPS.search(line)
            devices = len(groups[1].split(',')) if groups[1] else int(groups[3])
            shapes = tuple(shape for _, shape in arrays)
            found.append(Collective(match['kind'], shapes, size, devices, computation))
    return found


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size

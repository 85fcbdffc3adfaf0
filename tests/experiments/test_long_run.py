"""20,000 steps in a process of their own: what grows is a leak, what drifts is a sum."""

import json
import pathlib
import subprocess
import sys

from experiments import long_run

ROOT = pathlib.Path(__file__).parents[2]


def test_a_long_run_neither_grows_nor_drifts(tmp_path):
    """A leak of 256 bytes a step would make 4 MiB of the 16,000 steps after the warm-up.

    A checkpoint leaves 30 KiB in the metrics of TensorStore; there are 16 of them.
    """
    code = (
        'import json, pathlib\n'
        'from experiments import long_run\n'
        f'prepared = long_run.prepare(pathlib.Path({str(tmp_path)!r}))\n'
        'scores, rows = long_run.run(prepared)\n'
        'away = long_run.distances(scores, long_run.reference(prepared))\n'
        'print(json.dumps([rows, away]))\n'
    )
    line = [sys.executable, '-c', code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, check=True)
    rows, away = json.loads(done.stdout.splitlines()[-1])
    assert [row['step'] for row in rows] == list(range(500, 20_001, 500))
    assert long_run.rise(rows, 'memory_mib') < 4.0
    assert long_run.rise(rows, 'open_files') <= 6  # those of a checkpoint that is under way
    assert away.keys() == {'iterates', 'residual', 'iterates_llr', 'residual_llr'}
    assert max(away.values()) < 1e-5
    assert (tmp_path / 'metrics.jsonl').read_text().count('\n') == 1000

"""What is shown of a run while it goes on."""

import logging
import os
import pathlib
import pty
import subprocess
import sys
import time

import jax
import numpy as np

from oneshot.dpsgd import Stats
from oneshot.run import preparation, progress, training
from tests import small

ROOT = pathlib.Path(__file__).parents[2]


def test_a_terminal_gets_a_progress_bar():
    """The same command on a pseudo-terminal."""
    ours, theirs = pty.openpty()
    flags = ['--config.steps=60', '--config.dp.noise_multiplier=1.0', '--config.data.n=300']
    process = subprocess.Popen(
        [sys.executable, '-m', 'oneshot.main', '--config=configs/digits_wb.py', *flags],
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {'TERM': 'xterm', 'COLUMNS': '100'},
    )
    os.close(theirs)
    shown = b''
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # how Linux says that the other side is closed
        os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert 'steps/s, time left' in text
    assert '60/60' in text
    assert 'verdict' in text


def _stats(steps):
    return Stats(*(np.ones(steps, np.int32) for _ in Stats._fields))


def test_the_speed_shown_is_that_of_the_last_chunk(capsys):
    with progress.Log(None, 40) as log:
        log.write(10, _stats(10), None, 4.0)
        log.write(20, _stats(10), None, 0.5)
    assert capsys.readouterr().out.splitlines() == [
        'step 10 of 40: loss 1.000, 2 steps/s, 12 s left',
        'step 20 of 40: loss 1.000, 20 steps/s, 1 s left',
    ]


def test_no_chunk_is_timed_while_it_compiles(monkeypatch, caplog):
    """The program is compiled before the clock is looked at for the first time."""
    clock, seen = time.perf_counter, []

    def look():
        seen.append([r for r in caplog.records if 'Compiling jit(chunk)' in r.message])
        return clock()

    run = preparation.prepare(small.config())
    monkeypatch.setattr(training.time, 'perf_counter', look)
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        training.train(run)
    assert [len(records) for records in seen] == [1] * 6  # twice for each of three chunks

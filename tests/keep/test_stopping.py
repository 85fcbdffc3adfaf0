"""How a run ends before its last step."""

import os
import signal
import types

import pytest

from oneshot.keep.stopping import Diverged, Failed, Stopped, StopSignals, failing


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_handlers_are_put_back(number, capfd):
    before = signal.getsignal(number)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), number)
        assert signals.received == number
        assert signal.getsignal(number) == before  # the second one acts at once
    assert signal.getsignal(number) == before
    name = signal.Signals(number).name
    assert capfd.readouterr().err == (
        f'\noneshot: {name}: stops after this chunk, or now if it comes again\n'
    )


def test_what_the_errors_say():
    stopped = Stopped(signal.SIGTERM, 1200, 5000, 'runs/a')
    assert (stopped.status, stopped.received) == (128 + 15, signal.SIGTERM)
    assert 'Stopped by SIGTERM after step 1,200 of 5,000.' in str(stopped)
    config = types.SimpleNamespace(steps=5000, learning_rate=0.25)
    diverged = Diverged(1201, 'the loss', config)
    assert str(diverged) == (
        'At step 1,201 of 5,000, the loss is not finite: the run diverged, and was stopped. Try a '
        'smaller --config.learning_rate than 0.25; another config takes another --workdir, or '
        '--overwrite.'
    )
    kept = Diverged(1201, 'the loss', config, 'The state of step 1,200 is kept.')
    assert 'was stopped. The state of step 1,200 is kept. Try a smaller' in str(kept)
    assert (kept.step, kept.status) == (1201, 1)


def test_a_value_error_of_a_run_that_has_begun_is_a_failure():
    with pytest.raises(Failed, match=r'^The run failed: odd$') as error, failing():
        raise ValueError('odd')
    assert error.value.status == 1
    with pytest.raises(KeyError), failing():
        raise KeyError('odd')

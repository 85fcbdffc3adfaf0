"""Bad input gets a ValueError of one sentence that says what was given and what is right."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments import mechanisms
from oneshot import bounds

_NOT_NUMBERS = [math.nan, None, 'seven', '7', [], {}, 1j, True, object()]
_NOT_COUNTS = [*_NOT_NUMBERS, -1, -3.0, 0.5, 7.25, math.inf, -math.inf, 10**400]
_OUT_OF_UNIT = [*_NOT_NUMBERS, -1e-300, -1, 1.0000001, 2, math.inf]
_NEGATIVE = [*_NOT_NUMBERS, -1e-300, -2, -math.inf]
_NOT_VECTORS = [math.nan, None, 'seven', [], 3.0, [[1.0], [2.0]], [1.0, 'x'], [[1], [2, 3]], [1j]]

# What is wrong for an argument, by its name.
_BAD = {
    'm': [*_NOT_COUNTS, 0],
    'r': [*_NOT_COUNTS, 101],
    'v': [*_NOT_COUNTS, 61],
    'k_plus': _NOT_COUNTS,
    'k_minus': _NOT_COUNTS,
    'n': [*_NOT_COUNTS, 0],
    'steps': _NOT_COUNTS,
    'delta': _OUT_OF_UNIT,
    'confidence': [*_OUT_OF_UNIT, 0, 1],
    'failure': [*_OUT_OF_UNIT, 0, 1],
    'p': [*_OUT_OF_UNIT],
    'beta': [*_OUT_OF_UNIT, 0.2],
    'sampling_prob': _OUT_OF_UNIT,
    'eps': [*_NEGATIVE, 10**400],
    'rdp_eps': _NEGATIVE,
    'sigma': [*_NEGATIVE, 0, math.inf],
    'sensitivity': [*_NEGATIVE, math.inf],
    'noise_multiplier': _NEGATIVE,
    'eta': [*_NEGATIVE, 1.0, math.inf],
    'gamma': [*_NOT_NUMBERS, -1, 0.1, math.inf],
    'r1': [*_NEGATIVE, 101],
    'r2': [*_NEGATIVE, 11],
    'form': [None, 'other', 3],
    'weights': [*_NOT_VECTORS, [1.0, math.nan], [math.inf], [2.0, 1.0]],
    'n_in': [*_NOT_COUNTS, 39],
    'hits': [*_NOT_COUNTS, 61],
    'n_out': [*_NOT_COUNTS, 19],
    'alarms': [*_NOT_COUNTS, 51],
    'mu': _NEGATIVE,
    'scores_in': [*(one for one in _NOT_VECTORS if one != []), [1.0, math.nan], [math.inf, 1.0]],
    'scores_out': [*(one for one in _NOT_VECTORS if one != []), [1.0, math.nan], [-math.inf]],
}

_COUNTS = {'m': 100, 'r': 60, 'v': 40}
_GUESSES = {'m': 100, 'k_plus': 30, 'k_minus': 30, 'v': 40}
_WEIGHTS = {'weights': [1.0, 0.5, 0.5, 0.0], 'v': 1.5}
_NORMS = {'m': 100, 'r1': 60.0, 'r2': 8.0, 'v': 40}
_RATES = {'n_in': 60, 'hits': 40, 'n_out': 50, 'alarms': 20}
_SCORES = {'scores_in': [1.0, 2.0, 3.0], 'scores_out': [0.0, 1.0, 0.5]}
_CLAIM = {'eps': 0.5, 'delta': 1e-3}
_LEVEL = {'delta': 1e-3, 'confidence': 0.95}
_WEIGHT_V = {'v': [*_NEGATIVE, 2.1, math.inf]}

_CALLS = [
    (bounds.p_value, _COUNTS | _CLAIM, {}),
    (bounds.eps_lower_bound, _COUNTS | _LEVEL, {}),
    (bounds.adaptive_p_value, _COUNTS | _CLAIM, {}),
    (bounds.adaptive_eps_lower_bound, _COUNTS | _LEVEL, {}),
    (bounds.adaptive_split, {'m': 100} | _LEVEL, {}),
    (bounds.adaptive_weighted_p_value, _WEIGHTS | _CLAIM, _WEIGHT_V),
    (bounds.adaptive_weighted_eps_lower_bound, _WEIGHTS | _LEVEL, _WEIGHT_V),
    (bounds.replacement_p_value, _COUNTS | _CLAIM, {}),
    (bounds.replacement_eps_lower_bound, _COUNTS | _LEVEL, {}),
    (bounds.replacement_guarantee, _CLAIM, {}),
    (bounds.approx_p_value, _GUESSES | _CLAIM | {'p': 0.4}, {'p': [*_OUT_OF_UNIT, 0, 1]}),
    (bounds.approx_eps_lower_bound, _GUESSES | _LEVEL | {'p': 0.4}, {'p': [*_OUT_OF_UNIT, 0, 1]}),
    (bounds.weighted_p_value, _WEIGHTS | _CLAIM, _WEIGHT_V),
    (bounds.weighted_eps_lower_bound, _WEIGHTS | _LEVEL, _WEIGHT_V),
    (bounds.hoeffding_p_value, _NORMS | _CLAIM | {'form': 'sum'}, {'v': [*_NEGATIVE, 61]}),
    (bounds.hoeffding_eps_lower_bound, _NORMS | _LEVEL | {'form': 'closed'}, {'v': [-1, 61]}),
    (bounds.clopper_pearson_p_value, _RATES | _CLAIM, {}),
    (bounds.clopper_pearson_eps_lower_bound, _RATES | _LEVEL, {}),
    (bounds.cp_gdp_p_value, _RATES | {'mu': 0.1}, {}),
    (bounds.cp_gdp_mu_lower_bound, _RATES | {'confidence': 0.95}, {}),
    (bounds.cp_gdp_eps_lower_bound, _RATES | _LEVEL, {}),
    (bounds.gaussian_pair_p_value, _SCORES | {'mu': 0.1}, {}),
    (bounds.gaussian_pair_mu, _SCORES | {'confidence': 0.95}, {}),
    (bounds.gaussian_pair_eps, _SCORES | _LEVEL, {}),
    (
        bounds.envelope_curve,
        {'eps': [0.5, 1.0], 'delta': [1e-3, 1e-5]},
        {'eps': [-1.0, [0.5, 701.0], [], None], 'delta': [2.0, [0.1, math.nan], [], 'x']},
    ),
    (bounds.gaussian_delta, {'eps': 0.5, 'sigma': 1.0, 'sensitivity': 1.0}, {}),
    (bounds.gaussian_eps, {'delta': 0.5, 'sigma': 1.0, 'sensitivity': 1.0}, {}),
    (bounds.dpsgd_rdp, {'steps': 9, 'sampling_prob': 0.1, 'noise_multiplier': 1.0}, {}),
    (bounds.rdp_max_accuracy, {'rdp_eps': 1.0}, {}),
    (bounds.generalization_failure, {'n': 50, 'gamma': 0.5, 'eta': 0.1} | _CLAIM, {}),
    (bounds.generalization_error, {'n': 50, 'failure': 0.1} | _CLAIM, {}),
    (bounds.adaptive_analysis_error, {'n': 50, 'failure': 0.1, 'beta': 0.01} | _CLAIM, {}),
    (bounds.jung_error, {'failure': 0.1, 'beta': 0.01} | _CLAIM, {}),
    (bounds.mutual_information_bound, {'n': 5, 'p': 0.4} | _CLAIM, {}),
    (mechanisms.RandomizedResponse, {'m': 5, 'eps0': 1.0}, {'eps0': _NEGATIVE}),
    (mechanisms.Gaussian, {'m': 5, 'sigma': 1.0, 'sensitivity': 1.0}, {}),
    (mechanisms.Laplace, {'m': 5, 'scale': 1.0}, {'scale': [*_NEGATIVE, 0, math.inf]}),
    (
        mechanisms.Pathological,
        {'m': 100, 'r': 10, 'claimed_eps': 1.0, 'claimed_delta': 1e-4, 'beta': 0.05},
        {'claimed_eps': _NEGATIVE, 'claimed_delta': [*_OUT_OF_UNIT, 0.1], 'beta': [0, 2, None]},
    ),
]


# Arguments that may be arrays, and so may be empty.
_ARRAYS = [(bounds.p_value, 'v'), (bounds.p_value, 'eps'), (bounds.gaussian_delta, 'eps')]


@pytest.mark.parametrize(('function', 'good'), [call[:2] for call in _CALLS])
def test_the_good_calls_are_good(function, good):
    function(**good)


def _failure(function, arguments):
    """What is wrong with how a function refuses its arguments, or None."""
    try:
        value = function(**arguments)
    except ValueError as error:
        message = str(error)
        right = ' must ' in message and message.endswith('.') and '\n' not in message
        return None if right else f'says {message!r}'
    return f'gives {value!r}'


@pytest.mark.parametrize(('function', 'good', 'special'), _CALLS)
def test_bad_input(function, good, special):
    """Every argument in turn replaced by everything that is wrong for it."""
    cases = [
        (name, bad)
        for name in good
        for bad in special.get(name, _BAD.get(name, ()))
        if bad != [] or (function, name) not in _ARRAYS
    ]
    failures = [
        f'{name}={bad!r} {failure}'
        for name, bad in cases
        if (failure := _failure(function, good | {name: bad}))
    ]
    assert cases
    assert not failures


@given(st.sampled_from(_CALLS), st.data())
def test_fuzz(call, data):
    """Any one argument replaced by anything: a value, or a ValueError of one sentence."""
    function, good, _ = call
    name = data.draw(st.sampled_from(list(good)))
    anything = st.one_of(
        st.floats(),
        st.integers(),
        st.text(max_size=3),
        st.none(),
        st.lists(st.floats(), max_size=3),
    )
    try:
        function(**good | {name: data.draw(anything)})
    except ValueError as error:
        assert str(error).endswith('.'), error
        assert '\n' not in str(error), error


def test_counts_that_do_not_fit_together():
    for counts, wrong in [((10, 11, 5), 'r,'), ((10, 5, 6), 'v,'), ((10, 10, 2.5), 'v,')]:
        with pytest.raises(ValueError, match=f'{wrong}.* must be a whole number'):
            bounds.p_value(*counts, 1.0, 0.0)
    with pytest.raises(ValueError, match=r'v, .* must be a whole number from 0 to 10, but 11'):
        bounds.p_value(10, 10, [3, 11], 1.0, 0.0)


def test_arrays_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r'v and eps must broadcast together, but shapes \(2,\)'):
        bounds.p_value(100, 50, [1, 2], [1.0, 2.0, 3.0], 0.0)


@pytest.mark.parametrize(
    ('value', 'expected'),
    [
        (lambda: bounds.adaptive_split(10**7, 1.0, 1 - 1e-12).gamma, 0.0),
        (lambda: bounds.gaussian_delta(1.0, 1e-50), 1.0),
        (lambda: bounds.gaussian_delta(0.0, 1e17), 1e-17 / math.sqrt(2 * math.pi)),
        (lambda: bounds.gaussian_delta(bounds.gaussian_eps(1e-307, 1.0), 1.0), 1e-307),
        (lambda: bounds.mutual_information_bound(10, 800.0, 0.0, p=0.0), 0.0),
        (lambda: bounds.jung_error(800.0, 1e-5, 1e-5, 0.05), math.inf),
        (lambda: bounds.approx_p_value(100, 20, 20, 25, 690.0, 1e-5, p=1e-300), 0.80545),
        (lambda: bounds.hoeffding_p_value(100, 0.0, 0.0, 0.0, 1.0, 1e-5), 1.0),
        (lambda: mechanisms.RandomizedResponse(10, 1.0).delta(1000.0), 0.0),
        (lambda: mechanisms.Laplace(10, 1.0).delta(2000.0), 0.0),
    ],
)
def test_extremes_do_not_overflow(value, expected):
    assert value() == pytest.approx(expected, rel=1e-3, abs=1e-320)


def test_levels_below_the_rounding_error_of_one():
    """1 − (1 − γ) would be 0: q^1000 = 2.2e-16 gives 3.305, less what δ costs."""
    bound = bounds.adaptive_eps_lower_bound(10**4, 1000, 1000, 1e-20, 1 - 2.2e-16)
    assert 3.2 < bound < 3.305
    assert 36 < bounds.gaussian_eps(5e-324, 1.0) < 40


def test_whole_numbers_may_come_as_floats():
    assert bounds.p_value(100.0, 60.0, 40.0, 0.5, 0.0) == bounds.p_value(100, 60, 40, 0.5, 0.0)

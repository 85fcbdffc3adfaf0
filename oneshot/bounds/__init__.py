"""Every bound of "Privacy Auditing with One (1) Training Run", in NumPy and SciPy, and some more.

`one_run` has the bounds that assume nothing beyond (ε, δ)-DP, `assuming` those that assume more,
`consequences` what (ε, δ)-DP implies, `gaussian` Lemma gauss and `inversion` Lemma testci.

>>> from oneshot import bounds
>>> round(bounds.eps_lower_bound(m=1000, r=100, v=75, delta=1e-4), 3)
0.673
>>> round(bounds.p_value(m=1000, r=100, v=75, eps=0.5, delta=1e-4), 4)
0.0146
"""

from oneshot.bounds.assuming.clopper_pearson import (
    clopper_pearson_eps_lower_bound,
    clopper_pearson_p_value,
    cp_gdp_eps_lower_bound,
    cp_gdp_mu_lower_bound,
    cp_gdp_p_value,
)
from oneshot.bounds.assuming.fdp import (
    approximate_curve,
    envelope_curve,
    fdp_eps_lower_bound,
    fdp_p_value,
    gaussian_curve,
    gdp_mu_lower_bound,
)
from oneshot.bounds.assuming.gaussian_pair import (
    gaussian_pair_eps,
    gaussian_pair_mu,
    gaussian_pair_p_value,
)
from oneshot.bounds.consequences.generalization import (
    adaptive_analysis_error,
    generalization_error,
    generalization_failure,
    jung_error,
)
from oneshot.bounds.consequences.information import mutual_information_bound
from oneshot.bounds.consequences.rdp import dpsgd_rdp, rdp_max_accuracy
from oneshot.bounds.gaussian import gaussian_delta, gaussian_eps, gaussian_mu, gaussian_rho
from oneshot.bounds.one_run.adaptive import (
    adaptive_eps_lower_bound,
    adaptive_p_value,
    adaptive_split,
    adaptive_weighted_eps_lower_bound,
    adaptive_weighted_p_value,
)
from oneshot.bounds.one_run.approx import approx_eps_lower_bound, approx_p_value
from oneshot.bounds.one_run.main_theorem import (
    hoeffding_eps_lower_bound,
    hoeffding_p_value,
    main_p_value,
)
from oneshot.bounds.one_run.replacement import (
    replacement_eps_lower_bound,
    replacement_guarantee,
    replacement_p_value,
)
from oneshot.bounds.one_run.ternary import eps_lower_bound, p_value
from oneshot.bounds.one_run.weighted import weighted_eps_lower_bound, weighted_p_value

__all__ = [
    'adaptive_analysis_error',
    'adaptive_eps_lower_bound',
    'adaptive_p_value',
    'adaptive_split',
    'adaptive_weighted_eps_lower_bound',
    'adaptive_weighted_p_value',
    'approx_eps_lower_bound',
    'approx_p_value',
    'approximate_curve',
    'clopper_pearson_eps_lower_bound',
    'clopper_pearson_p_value',
    'cp_gdp_eps_lower_bound',
    'cp_gdp_mu_lower_bound',
    'cp_gdp_p_value',
    'dpsgd_rdp',
    'envelope_curve',
    'eps_lower_bound',
    'fdp_eps_lower_bound',
    'fdp_p_value',
    'gaussian_curve',
    'gaussian_delta',
    'gaussian_eps',
    'gaussian_mu',
    'gaussian_pair_eps',
    'gaussian_pair_mu',
    'gaussian_pair_p_value',
    'gaussian_rho',
    'gdp_mu_lower_bound',
    'generalization_error',
    'generalization_failure',
    'hoeffding_eps_lower_bound',
    'hoeffding_p_value',
    'jung_error',
    'main_p_value',
    'mutual_information_bound',
    'p_value',
    'rdp_max_accuracy',
    'replacement_eps_lower_bound',
    'replacement_guarantee',
    'replacement_p_value',
    'weighted_eps_lower_bound',
    'weighted_p_value',
]

"""Every figure of the paper by its label, and ours: python -m experiments.figures --help."""

# In the order of the page. Each is a module, which makes it alone as well:
# python -m experiments.figures.v_p
PAPERS = (
    'v_p',
    'v_eps',
    'eps_eps',
    'wb_diff_m',
    'wb_diff_nm',
    'wb_diff_iterations',
    'wb_dpsgd_cifar',
    'bb_diff_m',
    'bb_diff_nm',
    'guesses_eps_pure',
    'guesses_eps',
    'delta_eps',
)
BEYOND = ('valid_or_best', 'methods_m', 'price_of_audit', 'fault_zoo')

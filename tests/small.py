"""The real configs, shrunk."""

from configs import digits_wb


def config(of=digits_wb, **changes):
    """A config of a few seconds; σ is set, so that nothing is calibrated. a__b is key a.b."""
    made = of.get_config()
    made.steps, made.chunk, made.data.n = 25, 10, 300
    made.model.hidden = (16,)
    made.dp.noise_multiplier = 1.0
    made.audit.m = min(made.audit.m, 200)
    made.audit.k_plus = made.audit.k_minus = 20
    with made.unlocked(), made.ignore_type():
        for key, value in changes.items():
            *path, last = key.split('__')
            target = made
            for part in path:
                target = target[part]
            target[last] = value
    return made

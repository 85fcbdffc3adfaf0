"""Flax Linen with a `TrainState`.

python -m experiments.loops.flax_linen
"""

import jax
import optax
from flax import linen
from flax.training.train_state import TrainState

from experiments.loops.problem import Problem, report
from oneshot import audit


class MLP(linen.Module):
    hidden: int
    classes: int

    @linen.compact
    def __call__(self, image):
        hidden = linen.tanh(linen.Dense(self.hidden)(image.reshape(-1)))
        return linen.Dense(self.classes)(hidden)


def run(problem: Problem):
    model = MLP(*(bias.size for bias, _ in problem.layers))
    params = {
        f'Dense_{place}': {'kernel': kernel, 'bias': bias}
        for place, (bias, kernel) in enumerate(problem.layers)
    }
    state = TrainState.create(
        apply_fn=model.apply, params=params, tx=optax.sgd(problem.learning_rate)
    )
    audited = audit.start(
        problem.canaries, problem.coins, state.params, problem.claim, **problem.settings
    )

    def loss_fn(params, example):
        image, label = example
        logits = state.apply_fn({'params': params}, image)
        return optax.softmax_cross_entropy_with_integer_labels(logits, label)

    @jax.jit
    def step(state, audited, number):
        sampling_key, canary_key, noise_key = problem.keys(number)
        summed = problem.private_sum(loss_fn, state.params, sampling_key)
        summed, audited = audit.insert(audited, summed, canary_key)
        gradient = problem.noisy_mean(summed, noise_key)
        new_state = state.apply_gradients(grads=gradient)
        audited = audit.update(audited, state.params, new_state.params, gradient)
        return new_state, audited

    for number in range(problem.steps):
        state, audited = step(state, audited, number)
    return state.params, audited


if __name__ == '__main__':
    report(run)

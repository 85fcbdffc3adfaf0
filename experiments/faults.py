"""The fault zoo: does the audit catch the bugs that people really make?

    python -m experiments.faults            # an hour and a quarter on two cores
    python -m experiments.faults --quick    # two seeds, writes nothing
    python -m oneshot.check experiments.faults:noise_missing

Each fault is a DP-SGD step with one thing wrong, examined by the doctor, `oneshot.check`,
on 20 seeds. Controls are right or too careful, and must not be found fault with.
"""

import dataclasses
import functools
from collections.abc import Callable

from experiments import fault_steps as steps
from experiments.fault_steps import Claim
from oneshot import check
from oneshot.check.canary_audit import DELTA
from oneshot.check.runner import STEPS
from oneshot.claims import accounting

Q, BATCH = 0.25, 64.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """A DP-SGD step with one thing wrong, or none, if it is a control.

    Attributes:
        title: what is wrong.
        gradient: the step, a function of `experiments.fault_steps`.
        where: where it happened in the wild, or who warns of it.
        url: of that.
        eps: what it claims at δ = `DELTA`, after `STEPS` steps.
        c: the clip norm.
        q: what the accountant is told.
        sample: the sampler, a function of `experiments.fault_steps`; None for the doctor's.
        init: of a step with a state.
        rows: of a batch, padding and all.
    """

    title: str
    gradient: Callable
    where: str = ''
    url: str = ''
    eps: float = 2.0
    c: float = 1.0
    q: float = Q
    sample: Callable | None = None
    init: Callable | None = None
    rows: int = 256

    def step(self, model: check.Model | None = None) -> check.Step:
        """For the doctor, with σ for what is claimed."""
        claim = Claim(_sigma(self.eps, self.q), self.c, BATCH, self.q)
        return check.Step(
            functools.partial(self.gradient, claim),
            clip_norm=claim.c,
            noise_multiplier=claim.sigma,
            expected_batch_size=claim.batch,
            sampling_prob=claim.q,
            init=self.init,
            sample=None if self.sample is None else functools.partial(self.sample, claim),
            model=model,
            rows=self.rows,
            name=self.title,
        )


@functools.cache
def _sigma(eps: float, q: float) -> float:
    return accounting.calibrate_noise(eps, q, STEPS, DELTA)


_OPACUS = 'https://github.com/meta-pytorch/opacus/'
_TF_PRIVACY = 'https://github.com/tensorflow/privacy/'
_NEURSAFE = (
    'https://github.com/YanshiShield/YanshiShield/blob/f765b83d46e3719e4c06916365df9d3a026fdb2a/'
    'neursafe_fl/python/libs/secure/differential_privacy/dp_generator.py'
)
_JAX_PRIVACY = 'https://github.com/google-deepmind/jax_privacy/'

FAULTS = {
    'noise_missing': Fault(
        'noise missing',
        steps.noise_missing,
        'Opacus #313 (2021): an example trained the plain model beside the private one',
        _OPACUS + 'issues/313',
    ),
    'noise_without_c': Fault(
        'noise not multiplied by c',
        steps.noise_without_c,
        'Neursafe FL (2022): σ is the deviation, whatever the clip norm',
        _NEURSAFE,
        c=8.0,
    ),
    'noise_divided_twice': Fault(
        'noise divided by the batch size twice',
        steps.noise_divided_twice,
        'Tramèr et al. 2022, audit of backpropagation clipping: off by the batch size',
        'https://arxiv.org/abs/2202.12219',
    ),
    'sigma_as_variance': Fault(
        'σ applied as a variance',
        steps.sigma_as_variance,
        'SPRINT_gan #5 (2018): variance and deviation mixed up',
        'https://github.com/greenelab/SPRINT_gan/issues/5',
        eps=1.0,
        q=0.5,
        rows=512,
    ),
    'mean_clipped': Fault(
        'clipping of the batch mean instead of each example',
        steps.mean_clipped,
        'APPFL #349 (2025): clip_grad_norm_ on the gradient of the batch',
        'https://github.com/APPFL/APPFL/issues/349',
    ),
    'microbatch_clipped': Fault(
        'clipping after summing a microbatch',
        steps.microbatch_clipped,
        'TensorFlow Privacy #620 (2025): the doubled sensitivity is not accounted for',
        _TF_PRIVACY + 'issues/620',
    ),
    'clip_norm_ignored': Fault(
        'clip norm ignored',
        steps.clip_norm_ignored,
        'Opacus PR #664 (2024): fast gradient clipping did not use max_grad_norm',
        _OPACUS + 'pull/664',
    ),
    'layers_clipped_alone': Fault(
        'clip per layer with noise for one',
        steps.layers_clipped_alone,
        'Fed-BioMed #1443 (2025): clipped by parameter, not by global norm',
        'https://github.com/fedbiomed/fedbiomed/issues/1443',
    ),
    'noise_off_one_layer': Fault(
        'noise left off one layer',
        steps.noise_off_one_layer,
        'NVFlare #343 (2022): some weights were let out clipped, without noise',
        'https://github.com/NVIDIA/NVFlare/issues/343',
        eps=1.0,
    ),
    'same_key_each_step': Fault(
        'the same noise key each step',
        steps.same_key_each_step,
        'near: Keras #18426 (2023): a seed made constant by jit, the same draw at every step',
        'https://github.com/keras-team/keras/issues/18426',
        init=steps.keep_the_key,
    ),
    'same_key_on_every_leaf': Fault(
        'the same key on every leaf',
        steps.same_key_on_every_leaf,
        "JAX PR #3646 (2020): JAX's own example of DP-SGD used one key for all leaves",
        'https://github.com/jax-ml/jax/pull/3646',
    ),
    'one_value_per_leaf': Fault(
        'one value of noise for all of a leaf',
        steps.one_value_per_leaf,
        'Neursafe FL (2022): adding_same_noise, a default, draws one number for a layer',
        _NEURSAFE,
    ),
    'too_little_per_shard': Fault(
        'noise per shard at 1/√devices too little',
        steps.too_little_per_shard,
        'warned of: optax #148 (2021): pmean of the gradients of devices scales the noise',
        'https://github.com/google-deepmind/optax/issues/148',
    ),
    'noise_on_the_first_part': Fault(
        'accumulated gradients, noise only on the first part',
        steps.noise_on_the_first_part,
        'warned of: Opacus PR #203 (2021): two batches, and noise that covers one',
        _OPACUS + 'pull/203',
    ),
    'views_clipped_one_by_one': Fault(
        'augmented views clipped one by one',
        steps.views_clipped_one_by_one,
        'warned of: Bao et al. 2023 (DP-Mix), and in Opacus #455: average, then clip',
        'https://arxiv.org/abs/2311.01295',
    ),
    'raw_gradient_mixed_in': Fault(
        'a raw gradient mixed into the clipped sum',
        steps.raw_gradient_mixed_in,
        'Code of Yu et al., #7 (2024): backward() adds the raw mean to the clipped sum',
        'https://github.com/dayu11/Differentially-Private-Deep-Learning/issues/7',
    ),
    'tied_counted_once': Fault(
        'tied parameters counted once',
        steps.tied_counted_once,
        'dp-transformers PR #10 (2022), in review: the gradient of one use replaced the other',
        'https://github.com/microsoft/dp-transformers/pull/10',
    ),
    'float16_norms': Fault(
        'norms in float16 that underflow',
        steps.float16_norms,
        'jax_privacy PR #309 (2026): a norm of 0 in float16 leaves the gradient unclipped',
        _JAX_PRIVACY + 'pull/309',
        c=1e-3,
    ),
    'shuffled': Fault(
        'data drawn by shuffling but accounted as Poisson',
        steps.right,
        'Chua et al. 2024, and Opacus PR #128 (2021): so were all of its examples',
        'https://arxiv.org/abs/2403.17673',
        sample=steps.shuffled,
    ),
    'every_batch_twice': Fault(
        'every batch drawn twice',
        steps.right,
        'warned of: Opacus PR #264 (2021): without zero_grad a batch is used again',
        _OPACUS + 'pull/264',
        sample=steps.every_batch_twice,
    ),
    'wrong_q': Fault(
        'accounting with the wrong q',
        steps.right,
        'Opacus #444 (2022): several devices draw as many times the batch',
        _OPACUS + 'issues/444',
        eps=1.0,
        q=Q / 8,
        sample=steps.eight_devices,
    ),
    'batch_norm': Fault(
        'BatchNorm across examples',
        steps.batch_norm,
        'warned of: Opacus #319 (2021): refused, and replaced by GroupNorm',
        _OPACUS + 'issues/319',
    ),
    'divided_by_the_drawn': Fault(
        'division by the number of drawn examples',
        steps.divided_by_the_drawn,
        'warned of: asked for in Opacus #420 (2022), which divides by the expected number',
        _OPACUS + 'issues/420',
    ),
    'not_finite_kept': Fault(
        'a gradient that is not finite, kept',
        steps.not_finite_kept,
        'optax and Opacus, below and in audit_peers; jax_privacy warns of it (nan_safe)',
        _JAX_PRIVACY + 'blob/06ca8e449b3544f52ef9e65b914bd6c51e122229/jax_privacy/clipping.py',
    ),
}

CONTROLS = {
    'right': Fault('DP-SGD as it should be', steps.right, sample=steps.poisson),
    'sum_noise_on_the_mean': Fault(
        'noise for the sum on the mean (too careful)',
        steps.sum_noise_on_the_mean,
        'jax_privacy #383 (2026)',
        _JAX_PRIVACY + 'issues/383',
    ),
    'replace_one': Fault(
        'noise for replacing one, 2c (too careful)',
        steps.replace_one,
        'google/differential-privacy #378 (2025), where the 2 was forgotten',
        'https://github.com/google/differential-privacy/issues/378',
    ),
    'layers_share_the_norm': Fault(
        'every layer clipped to its share of c', steps.layers_share_the_norm
    ),
    'noise_in_parts': Fault('noise in 16 parts of σc/4', steps.noise_in_parts),
    'views_averaged': Fault('views averaged, then clipped', steps.views_averaged),
    'normalized': Fault('gradients scaled to c·g/(‖g‖ + 0.01)', steps.normalized),
    'small_c': Fault('a clip norm of 0.001', steps.right, c=1e-3),
}


def __getattr__(name: str) -> check.Step:
    """The step of a fault or control, for the command line."""
    zoo = FAULTS | CONTROLS
    if name not in zoo:
        raise AttributeError(name)
    return zoo[name].step()


if __name__ == '__main__':
    from experiments import fault_table

    fault_table.main()

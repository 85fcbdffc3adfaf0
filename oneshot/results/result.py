"""What a result is."""

import dataclasses
from typing import Any

ASSUMPTIONS = {
    'none': 'nothing beyond (ε, δ)-DP',
    'f-dp': 'a Gaussian trade-off curve',
    'f-dp-dpsgd': 'the trade-off curve of DP-SGD with these q and steps',
    'independent': 'independent scores given the coins',
    'independent-gaussian': 'independent scores, a Gaussian trade-off curve',
    'gaussian-scores': 'Gaussian scores',
}


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """A lower bound on ε, and all that it rests on.

    >>> import numpy as np
    >>> import oneshot
    >>> included = np.arange(200) % 2 == 0
    >>> guesses = np.where(included, 1, -1) * np.where(np.arange(200) < 20, -1, 1)
    >>> result = oneshot.audit_guesses(guesses, included, delta=1e-5, eps_claimed=1.0)
    >>> result.correct, result.guesses, round(result.eps_lb, 2), result.certainty
    (180, 200, 1.8, 'with 95 % confidence')
    >>> result.violated
    True

    Attributes:
        eps_lb: at most the true ε with probability `confidence` or more, if `kind` is 'bound'.
        method: the name of the method, a key of `METHODS`.
        assumptions: what has to hold of the algorithm, a key of `ASSUMPTIONS`.
        confidence: 1 − the probability that the bound may be wrong.
        delta: the δ of the (ε, δ)-DP that is audited.
        m: the number of canaries.
        guesses: the number of guesses, r.
        correct: the number of right guesses, or their weight, v.
        k_plus: the number of guesses "included", None if it is not known.
        k_minus: the number of guesses "excluded", None if it is not known.
        eps_claimed: the ε that the algorithm is claimed to have, if any.
        p_value: the p-value of that claim, if any.
        kind: 'bound', 'estimate', or 'no guarantee' if guesses were chosen by their success.
        rule: how the guesses were chosen, a key of `oneshot.guess.RULES`.
        weight: the weight of all guesses, where they are weighted.
    """

    eps_lb: float
    method: str
    assumptions: str
    confidence: float
    delta: float
    m: int
    guesses: int
    correct: float
    k_plus: int | None = None
    k_minus: int | None = None
    eps_claimed: float | None = None
    p_value: float | None = None
    kind: str = 'bound'
    rule: str = 'fixed'
    weight: float | None = None

    @property
    def violated(self) -> bool | None:
        """Whether the claim is rejected at this confidence; None without a claim."""
        return None if self.eps_claimed is None else self.eps_lb > self.eps_claimed

    @property
    def certainty(self) -> str:
        """How sure the bound is, in words."""
        if self.kind == 'bound':
            return f'with {100 * self.confidence:g} % confidence'
        return 'an estimate, not a bound' if self.kind == 'estimate' else 'without any guarantee'

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> 'AuditResult':
        """From a dict, as JSON has it: infinities are words, and there may be other keys."""
        names = [field.name for field in dataclasses.fields(cls) if field.name in record]
        return cls(**{name: _number(record[name]) for name in names})


def _number(value: Any) -> Any:
    return float(value) if value in ('inf', '-inf', 'nan') else value

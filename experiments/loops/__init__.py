"""Training loops of others with the audit in them, a file for each kind.

    python -m experiments.loops.sgd

What the audit adds to each are the lines with `audit.` in them. All train the same model on
the same data with the same keys as

    python -m oneshot.main --config=configs/digits_wb.py --config.data.n=600 …

(`problem.py` has the rest), so that their scores can be compared, and are equal.
"""

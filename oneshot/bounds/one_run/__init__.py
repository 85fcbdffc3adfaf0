"""Bounds from one run that assume nothing beyond (ε, δ)-DP, theorem by theorem."""

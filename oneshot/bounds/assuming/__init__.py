"""Bounds and estimates that assume more than (ε, δ)-DP: each says what."""

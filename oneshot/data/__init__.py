"""The data sets and models that a run can name."""

"""What people read of a run: words, page, plots."""

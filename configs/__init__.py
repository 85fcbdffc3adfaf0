"""One file a run: `oneshot run digits_wb`."""

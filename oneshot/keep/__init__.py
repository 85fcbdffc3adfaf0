"""What outlives a process: the folder of a run, checkpoints, signals, other processes."""

"""The rooms of the doctor, `oneshot.check`: what it gives a step, and what it looks at.

`step` has the step and the examples it is given. `sensitivity` looks at what can be
computed exactly, `noise` and `draws` at what takes statistics, and `canaries` audits the
step in one run.
"""

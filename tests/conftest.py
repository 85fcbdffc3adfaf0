import hypothesis

# The same examples on every machine; a found failure is printed with its input.
hypothesis.settings.register_profile('oneshot', derandomize=True, deadline=None)
hypothesis.settings.load_profile('oneshot')

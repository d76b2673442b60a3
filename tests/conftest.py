"""What holds for all tests: no example is too slow on a busy machine, and every run tries the same examples."""

from hypothesis import settings

settings.register_profile("stepscope", deadline=None, derandomize=True)
settings.load_profile("stepscope")

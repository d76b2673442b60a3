"""`python -m stepscope.bench.simulate`: one simulated step from the command line."""

import sys

from stepscope.bench.simulate.step import main

sys.exit(main())

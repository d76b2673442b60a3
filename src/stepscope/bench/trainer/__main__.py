"""`python -m stepscope.bench.trainer`: one training from the command line."""

import sys

from stepscope.bench.trainer.trainer import main

sys.exit(main())

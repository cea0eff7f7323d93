"""Pre-trains a GPT on data/train.bin; settings in config/conf.yaml, if there is one, and on the command line."""

import sys

from orchestra.train.gpt.__main__ import main

sys.exit(main())

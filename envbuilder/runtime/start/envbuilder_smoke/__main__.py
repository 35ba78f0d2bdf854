"""`python -m envbuilder_smoke`."""

import sys

from envbuilder_smoke import main

sys.exit(main(sys.argv[1:]))

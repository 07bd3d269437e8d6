"""`python -m svc.cli` is `headrace`."""

import sys

from svc.cli import main

if __name__ == "__main__":
    sys.exit(main())

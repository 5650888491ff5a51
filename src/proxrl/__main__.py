"""`python -m proxrl`, for launchers that start modules."""

import sys

from proxrl.cli import main

if __name__ == "__main__":
    sys.exit(main())

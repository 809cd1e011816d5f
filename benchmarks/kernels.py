"""``python benchmarks/kernels.py`` runs ``thinwire bench kernels``."""

from __future__ import annotations

import sys

from thinwire.cli.main import main

if __name__ == "__main__":
    main(["bench", "kernels", *sys.argv[1:]], prog_name="thinwire")

"""A child process for tests: it repeats its stdin up to the line "end", and then fails."""

import sys

for line in sys.stdin:
    if line == "end\n":
        break
    print(line, end="", flush=True)
print("first\nlast", file=sys.stderr)
sys.exit(3)

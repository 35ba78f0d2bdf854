"""Find known failures where there is Python and nothing else: `python -m envbuilder.diagnose FILE…`, with `-` for stdin.

It answers and ends as `envbuilder diagnose` does, which has more options. `--brief` gives the cause in four lines, as `launch`
ends with, and ends with 0 where none is known.
"""

import os
import sys

from envbuilder.core.text.redact import know_secrets, plain
from envbuilder.diagnose import LogError, as_text, brief, diagnose

_BRIEF = 4 << 20  # bytes that the slowest search, without RE2, reads in a second


def main(names: list[str]) -> int:
    """Print the answer and return the exit code."""
    is_brief = names[:1] == ["--brief"]
    shown, most = (brief, _BRIEF) if is_brief else (as_text, 0)
    names = names[is_brief:]
    if not names or any(name.startswith("-") and name != "-" for name in names):
        print(__doc__, file=sys.stderr)
        return 2
    know_secrets(os.environ)
    try:
        diagnosis = diagnose(names, sys.stdin.buffer, most)
        print(plain(shown(diagnosis)))
    except LogError as error:
        print(plain(f"error: {error}\n\nhint: {error.hint}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0 if is_brief else diagnosis.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Start a Jupyter kernel inside an environment: `python -c THIS`, with the connection file as one line on stdin.

It ends when stdin ends, so no kernel outlives the connection to it.
"""

import contextlib
import os
import sys
import tempfile
import threading


def main() -> None:
    """Run the kernel of the environment's own ipykernel."""
    try:
        from ipykernel.kernelapp import (  # type: ignore[import-not-found] # noqa: PLC0415 - the environment's
            launch_new_instance,
        )
    except ImportError:
        sys.exit(
            "the environment has no ipykernel: add `ipykernel` to the `packages` of its recipe, and build it again"
        )
    text = b""
    while not text.endswith(b"\n"):
        text += os.read(0, 1) or sys.exit("no connection file came on stdin")
    handle, path = tempfile.mkstemp(suffix=".json")
    os.write(handle, text)
    os.close(handle)
    client = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # programs that a notebook starts must not read it
    threading.Thread(target=_end_with_client, args=(client, path), daemon=True).start()
    # It names a process of the client.
    os.environ.pop("JPY_PARENT_PID", None)  # noqa: TID251 - of the environment
    launch_new_instance(["-f", path])


def _end_with_client(client: int, path: str) -> None:
    while os.read(client, 4096):
        pass
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - it has the key of the connection
    os._exit(0)


if __name__ == "__main__":
    main()

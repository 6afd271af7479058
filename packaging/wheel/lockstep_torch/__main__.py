"""The command `lockstep`, with the torch of this Python."""

import importlib.util
import os
import sys


def main():
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "prefix", "bin", "lockstep")
    torch = importlib.util.find_spec("torch")
    if torch and torch.submodule_search_locations:
        os.environ.setdefault("LOCKSTEP_LIBTORCH", torch.submodule_search_locations[0])
    os.execv(command, ["lockstep", *sys.argv[1:]])


if __name__ == "__main__":
    main()

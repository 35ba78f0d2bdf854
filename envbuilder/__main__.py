"""Let `python -m envbuilder` run the command line."""

from envbuilder.cli import main

if __name__ == "__main__":
    main()

"""``python -m hotdraft`` is the `hotdraft` command."""

from hotdraft.cli import main

if __name__ == "__main__":
    main()

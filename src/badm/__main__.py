"""``python -m badm`` is the ``badm`` command."""

from badm.cli import main

if __name__ == "__main__":
    main()

"""``python -m fedgrem``: the command line, where its script is not on the path."""

from fedgrem.cli import main

if __name__ == "__main__":
    main()

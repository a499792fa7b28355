"""`python -m tokpipe`."""

from tokpipe.cli.main import main

if __name__ == "__main__":
    main()

"""`python -m bertflow` is `bertflow`."""

from bertflow.cli.main import main

if __name__ == "__main__":
    main()

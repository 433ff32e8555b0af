"""The ``thalweg`` command of the package, as ``python -m thalweg``."""

from thalweg._command import main

if __name__ == "__main__":
    main()

"""``python -m gpupipe``: the ``gpupipe`` command of this interpreter."""

from .cli import main

if __name__ == "__main__":
    main()

"""Implementation of the commands. ``cli.py`` holds their arguments and imports these modules on demand."""

"""What the commands do. ``cli.py`` holds their arguments, and imports these modules when they are called."""

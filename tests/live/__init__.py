"""Live sessions: the script's own code runs, its pixels wait, and nobody can tell."""

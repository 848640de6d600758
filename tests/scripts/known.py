"""Expected failures: what gpupipe does not do yet, script by script and check by check, with the cause.

The tests are strict: what is done makes its line here fail, and the line goes. What does not run has no other checks.
"""

from __future__ import annotations

__all__ = ["KNOWN"]

KNOWN: dict[str, dict[str, str]] = {}
"""By script and check."""

"""DALI's error messages without internal details."""

from __future__ import annotations

import re


def clean(message: str) -> str:
    """Extract DALI's own sentence from a message of many lines."""
    found = re.findall(r"encountered:\s*(.*?)\s*(?:C\+\+ context|Current pipeline|$)", message, re.DOTALL)
    text = found[-1] if found else message
    return " ".join(re.sub(r"\[/opt/dali\S*\]:?|Error in thread \d+:", "", text).split()) or "DALI gave no reason"

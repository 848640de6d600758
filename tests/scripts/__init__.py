"""Data code in the style of public training scripts, run with torch's DataLoader and with gpupipe's; see README.md."""

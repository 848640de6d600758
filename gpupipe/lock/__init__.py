"""Files that pin what a run reads, and the differences between two of them."""

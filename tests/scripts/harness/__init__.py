"""What runs the scripts and compares.

``script`` ← ``ours`` ``record`` ``layouts`` ``tree`` ← ``compare`` ``distributions`` ← ``judge`` ← ``table``.
"""

"""What runs the scripts and compares.

``script`` ← ``loaders`` ``record`` ``layouts`` ``tree`` ← ``compare`` ← ``judge`` ← ``table``.
"""

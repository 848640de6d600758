"""JPEG files below the pixels: their markers, Huffman codes and coefficients, and files that can be cut by rows.

A *sliceable* file is a sequential JPEG with a restart marker at the end of every row of MCUs (the blocks of 8x8 to
32x32 pixels that its scan goes through), and with the places of those rows in a segment of its own. Some rows of it can
be decoded without the rest: :mod:`.rows` has the format and the cut, :mod:`.rewrite` makes any file one without a
change of a coefficient. Numpy only. *T.81* in here is the standard, ITU-T T.81 (ISO/IEC 10918-1).
"""

IDENTIFIER = b"gpupipe rows\0"
"""What the segment APP9 of a sliceable file begins with."""

"""What the readers accept at most; a larger file is refused in one line that says the limit."""

LONGEST_LABEL = 200
"""Characters of a class name."""
LONGEST_ID = 4096
"""Characters of a sample's name: the longest path of Linux."""
LONGEST_LINE = 1 << 16
"""Characters of a line in a list."""
LONGEST_ROW = 1 << 28
"""Bytes of a row in a CSV file."""
MOST_LINES = 50_000_000
"""Lines of a list."""
MOST_NAMES = 10_000_000
"""Rows of a column of text in memory: labels, and ids of tables that are not large."""
MOST_UNPACKED = 500
"""Times its size that a large compressed array of numbers may unpack to."""
LARGEST_IMAGE = 1 << 30
"""Bytes of an image file, or of an image in a tar shard."""
MOST_CELLS = 50_000_000
"""Cells of an Excel sheet, empty ones included."""

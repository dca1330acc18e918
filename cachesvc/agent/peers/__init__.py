"""Has agents of nodes give each other packs: nobody parses a byte before its signed digest is checked."""

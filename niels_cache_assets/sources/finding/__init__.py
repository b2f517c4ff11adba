"""Finding files on this machine, and telling what a file is from its first bytes. No text is read here."""

"""Search for files on this machine. Nothing here reads their text."""

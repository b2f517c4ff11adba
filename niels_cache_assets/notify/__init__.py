"""Messages about builds, to the command in [notify]."""

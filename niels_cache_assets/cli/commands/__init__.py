"""The commands. Each command has one file with its help, options and code. The file has the name of the command, with _ for -."""

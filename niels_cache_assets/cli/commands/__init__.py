"""The commands, one file each, named as they are typed (with _ for -): help, options and code. parser.py loads them by name."""

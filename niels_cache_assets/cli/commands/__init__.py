"""The commands, one file each, named as they are typed: help, options and code."""

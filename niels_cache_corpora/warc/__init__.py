"""The source `warc`: web pages of crawls in WARC files, and texts of WET files.

source       the table [pretrain.NAME] with source = "warc"
records      the records of a file, their offsets, and damage
pages        the page of a record: HTTP, content encodings, charset and main text
"""

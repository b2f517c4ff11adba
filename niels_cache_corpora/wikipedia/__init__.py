"""The source `wikipedia`: articles of the hub's plain text, or of a MediaWiki dump, whose markup becomes plain text.

source       the table [pretrain.NAME] with source = "wikipedia"
dump         the pages of an XML dump             site      what the dump says about its wiki
markup       the plain text of wikitext           names, languages      words of wikis
templates    the text of common templates
"""

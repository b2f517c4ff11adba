"""MediaWiki: pages of an XML dump, and the plain text of their markup. No code here depends on a particular data set."""

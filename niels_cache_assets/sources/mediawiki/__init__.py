"""MediaWiki: pages of an XML dump, and plain text of their markup. Which data set they are of is not known here."""

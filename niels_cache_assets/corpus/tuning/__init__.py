"""The content of `niels-cache tune`, from signatures and measures that a corpus has stored. No text is signed or cleaned again."""

"""What `niels-cache tune` shows, from signatures and measures that a corpus has stored. No text is signed, compared or cleaned again."""

"""What a build keeps on the disk: the journal that lets it be resumed, files written once and hashed on the way, and room for them."""

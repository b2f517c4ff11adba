"""The document stream of a build: from the items of a source to tokens and splits.

    intake, feed --> shuffle --> encode --> decontaminate --> splits      types: what they exchange

The subpackage `build_cache` writes the files.
"""

"""Reading caches from object stores: the client (`store`), the record of a published build (`record`) and the local copy (`local_copy`)."""

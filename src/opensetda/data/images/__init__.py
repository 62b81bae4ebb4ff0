"""Images: folders, lists, manifests and tar shards."""

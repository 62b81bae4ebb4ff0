"""Images to features: the registry, weights, preprocessing and the cache on disk."""

"""MovingMeans: class means that move to the target, a closed form."""

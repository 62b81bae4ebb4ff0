"""Training an image backbone: what it is trained on, and rounds of labels and training."""

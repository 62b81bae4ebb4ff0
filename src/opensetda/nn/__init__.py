"""What learned methods share: adapter, discriminator, optimiser, and the loop of the rivals."""
